"""Is the target fit for what comes: the role's rights, which the start of a worker checks too, and the tables."""
