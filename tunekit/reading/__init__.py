"""Read a sweep that is running, has ended or has crashed, as tables."""
