"""The rules, as plain functions and state machines over data.

Nothing here imports Ray, torch or pandas, opens a file or reads a clock: events and the time are
arguments, and actions are return values. A score passes through these modules in this order:

``validation`` (which checkpoints to validate) → ``pool`` (which validation to start next) →
``history`` (the row that a score belongs to) → ``delivery`` (when the scheduler and the searcher
may see it).
"""
