"""Runs a sweep's validations: Tune's hooks come in, events are recorded, and acted on."""
