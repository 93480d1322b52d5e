"""Learns from recorded sweeps: simulations and comparisons."""
