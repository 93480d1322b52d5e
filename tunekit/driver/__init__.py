"""Run a sweep's validations: turn Tune's hooks into events, and carry out the commands."""
