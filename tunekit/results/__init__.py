"""Add validated scores to the results that Tune and its loggers show."""
