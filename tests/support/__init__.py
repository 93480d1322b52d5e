"""What tests share; each module is one noun.

Sweeps in this process, in virtual time:

- ``local_sweep``: Tune's own controller, over trainables that are not actors.
- ``fakes``: a clock that does not wait, and validations that last and fail as a test says.
- ``sweeps``: plans of sweeps with validation on these, described step by step, and what has run.
- ``trainables``: what they train, and how good it is.
- ``modes``: what trials do while scores are pending.
- ``schedulers``: every scheduler, set up for short sweeps; ``every_case`` runs a test with each.
- ``heard``: what a scheduler was told, and what it decided.
- ``versioned``: trials whose weights are a number, to check what a clone continues from.

What must always hold, and what tries to break it:

- ``invariants``: of a sweep, checked after each of its steps, and of a journal, line by line.
- ``contract``: what holds for every scheduler, checked at a sweep's end.
- ``kills``: kills sweeps at a write, and restores them until they end.
- ``restores``: folders of sweeps before they are restored.
- ``journals``: reads journals, and changes them without breaking their checksums.
- ``golden``: stored journals of sweeps, and what readers must make of them.
- ``object_store``: a storage that fails on demand.
- ``odd_values``: what a user's code may return by mistake.
- ``seeds``: which random cases run at each push, and how many at night.

Readers:

- ``events``: events of a trial, as a journal has them.
- ``readers``: journals without a sweep, and the command line.
- ``recordings``: sweeps to read, and journals that grow.
- ``asgi``: a browser of the live page, without a network.
- ``chromium``: a real browser; ``browser_scripts`` has what it runs in a page.

A real Ray:

- ``real_sweeps``: trainables and a short way to run them.
- ``worker_groups``: distributed trials whose weights are a number.
- ``driver``: a driver in a process that can be killed.
- ``several_nodes``: a cluster of several nodes in a process of its own.
- ``s3``: an S3 server.
- ``forked_workers``: forks Ray's processes from one that has imported everything.
"""
