"""A sweep again in virtual time, by recorded curves: what another setting would have come to."""

from tunekit.simulation.outcome import Simulation
from tunekit.simulation.run import simulate

__all__ = ["Simulation", "simulate"]
