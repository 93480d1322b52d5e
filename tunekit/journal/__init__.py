"""Records a sweep: lines, archives, the storage for both, and the lock of its driver."""
