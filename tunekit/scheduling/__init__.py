"""Wraps any Tune scheduler and searcher, which see only validated results."""
