"""Runs validations: chooses their processes, retries them and collects their results."""
