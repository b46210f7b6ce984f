"""The worker's position: the applied one, the lease to apply, and where it continues."""
