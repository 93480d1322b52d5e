"""Folds validated scores back into what Tune and its loggers show of a trial."""
