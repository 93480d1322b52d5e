"""Run validations: choose their processes, retry them and collect their results."""
