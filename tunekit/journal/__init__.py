"""Record a sweep: its journal, archives, storage and driver lock."""
