"""Wrap any Tune scheduler and searcher, so that they get only validated results."""
