"""Decide which reports are validated, and what trials do meanwhile; restore and end sweeps."""
