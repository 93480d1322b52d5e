"""Evaluations that no decision depends on: stages, confirming the winner, followed folders.

Each is an :class:`~tunekit.evaluation.evaluation.Evaluation`: a
:class:`~tunekit.evaluation.evaluation.Source` of checkpoints, a function with its resources, a
journal and a cache. Further stages follow a sweep, and write into its journal
(:mod:`tunekit.evaluation.stages`). A :class:`~tunekit.evaluation.session.Session` has a journal of
its own: later validations and a confirmation beside the sweep's, a followed folder
(:mod:`tunekit.evaluation.following`) in the place of a sweep's.
"""
