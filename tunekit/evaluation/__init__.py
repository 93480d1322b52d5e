"""Evaluations that no decision depends on: later validations, followed folders.

Each is an :class:`~tunekit.evaluation.evaluation.Evaluation`: a
:class:`~tunekit.evaluation.evaluation.Source` of checkpoints, a function with its resources, and
a journal. A :class:`~tunekit.evaluation.session.Session` has its own journal: next to the
sweep's for later validations, instead of a sweep's for a followed folder
(:mod:`tunekit.evaluation.following`).
"""
