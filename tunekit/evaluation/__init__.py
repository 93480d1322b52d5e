"""Evaluates what decides nothing: further stages, later validations, the confirmed winner.

They are one thing: a source of checkpoints, a choice of which, a function with its resources, and a
journal. :class:`~tunekit.evaluation.evaluation.Evaluation` runs the function: in a driver for each
further stage of a sweep, whose journal is the sweep's own, and in a
:class:`~tunekit.evaluation.session.Session` otherwise, which has a journal of its own.
"""
