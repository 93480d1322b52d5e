"""The rules, as plain functions and state machines over data.

Nothing here imports Ray, torch or pandas, opens a file or reads a clock: events and the time are
arguments, and actions are return values. There are three kinds of modules:

- metrics and values: ``values``, ``metrics``, ``constraints``, ``pareto``, ``parameters``,
  ``signatures``;
- what has happened: ``events``, and what follows from them: ``state`` (what is true
  now), ``timeline`` (its history), ``summaries``, ``lineage``, ``retention``, ``ranking``;
- what happens next: ``decision_points`` (which checkpoints to validate), ``pool`` of
  ``validation`` requests (which to start), ``queue`` (when Tune gets the result, and what the
  trial does meanwhile), with ``shares``, ``timing`` and ``failures``; and ``halving`` and
  ``training_loops`` for schedulers and workers.
"""
