"""Simulations of recorded sweeps with other settings, and comparisons of sweeps."""

from tunekit.lab.comparison import SweepComparison, compare
from tunekit.lab.simulation import Simulation, simulate

__all__ = ["Simulation", "SweepComparison", "compare", "simulate"]
