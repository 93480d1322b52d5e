"""Evaluates what decides nothing: later validations, the confirmed winner."""
