"""The only package that uses Ray's private names.

The rest of tunekit uses Ray's public API. The private names are checked when the driver imports
this package (:mod:`tunekit._ray.compat`), and wrapped in small classes, such as:

- :mod:`~tunekit._ray.validating_controller`: the running experiment;
- :mod:`~tunekit._ray.checkpoints`: the checkpoints of a trial;
- :mod:`~tunekit._ray.functions`: function trainables that save on demand.
"""

from tunekit._ray import compat

if not compat.in_worker():  # the driver has already checked, and workers must start quickly
    compat.check()
