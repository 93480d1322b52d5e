"""The rules, as plain functions and state machines over data.

Nothing here imports Ray, torch or pandas, opens a file or reads a clock: events and the time are
arguments, and actions are return values. A score passes through these modules in this order:

``validation`` (which checkpoints to validate) → ``pool`` (which validation to start next) →
``queue`` (when Tune gets the result, and what the trial does meanwhile).
"""
