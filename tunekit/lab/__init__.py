"""What to learn from recorded sweeps: simulations of other settings, and comparisons."""

from tunekit.lab.comparison import SweepComparison, compare
from tunekit.lab.simulation import Simulation, simulate

__all__ = ["Simulation", "SweepComparison", "compare", "simulate"]
