"""Read a running, finished or crashed sweep as tables."""
