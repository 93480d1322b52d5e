"""Run sweeps: decide what is validated, and what trials do meanwhile; end and restore sweeps."""
