"""Alterations of indexes when the source alters its tables."""
