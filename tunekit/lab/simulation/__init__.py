"""A sweep run again in virtual time on recorded curves: how other settings would have done."""

from tunekit.lab.simulation.outcome import Simulation
from tunekit.lab.simulation.run import simulate

__all__ = ["Simulation", "simulate"]
