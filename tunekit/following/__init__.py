"""Validate checkpoints outside a running sweep: those of a sweep, or in any folder.

A :class:`~tunekit.following.loop.Source` yields checkpoints: the best ones of a sweep
(:mod:`tunekit.following.best`), or those that appear in a folder
(:mod:`tunekit.following.follow`). One loop (:mod:`tunekit.following.loop`) validates them. One
:class:`~tunekit.following.record.Recorder` writes a journal, from which the next call continues.
No running sweep imports this package; only readers of sweeps do.
"""
