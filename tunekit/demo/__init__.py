"""A sweep on real data that runs in minutes: ``python -m tunekit.demo``."""
