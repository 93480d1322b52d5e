"""Evaluates what decides nothing: further stages, later validations, the confirmed winner.

They are one thing, an :class:`~tunekit.evaluation.evaluation.Evaluation`: a
:class:`~tunekit.evaluation.evaluation.Source` of checkpoints, a function with its resources, a
journal and a cache. Further stages follow a sweep, and write into its journal
(:mod:`tunekit.evaluation.stages`). A :class:`~tunekit.evaluation.session.Session` has a journal of
its own.
"""
