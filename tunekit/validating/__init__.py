"""Runs validations: which process, which attempt, what comes back."""
