"""The rules, as plain functions and state machines over data.

Nothing here imports Ray, torch or pandas, opens a file or reads a clock: events and the time
come in as arguments, actions go out as return values. A score passes through these modules in
this order:

``policy`` (when to save) → ``selection`` (which checkpoint to validate) → ``pool`` (which
validation to start next) → ``validation`` (what came of it) → ``history`` (the row it belongs
to) → ``delivery`` (when the scheduler and the searcher may see it).
"""
