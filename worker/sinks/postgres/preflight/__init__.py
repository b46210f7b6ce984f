"""Checks that the target fits: the role's rights, which the start of a worker checks too, and the tables."""
