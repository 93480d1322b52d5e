"""The results of a sweep that has run in this process: its grid and its exploits."""
