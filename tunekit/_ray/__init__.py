"""The only home of Ray's private names.

Everything else in tunekit uses Ray's public API. What it takes beyond that is gathered here,
checked when the driver imports it (:mod:`tunekit._ray.compat`), and wrapped in small classes with
names of our own:

- :mod:`~tunekit._ray.controller`: what a scheduler may do with the running experiment;
- :mod:`~tunekit._ray.checkpoints`: which checkpoints of a trial are kept;
- :mod:`~tunekit._ray.functions`: how a function trainable saves.
"""

from tunekit._ray import compat

if not compat.in_worker():  # the driver has checked already, and each worker is to begin quickly
    compat.check()
