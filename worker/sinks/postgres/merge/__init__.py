"""Folded rows staged in the target and merged into its tables."""
