"""The results of a sweep that ran in this process: its grid and its exploits."""
