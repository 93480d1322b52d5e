"""A sweep run again in virtual time on recorded curves: how other settings would have done."""

from tunekit.simulation.outcome import Simulation
from tunekit.simulation.run import simulate

__all__ = ["Simulation", "simulate"]
