"""Show sweeps in a browser: the report and the live page."""
