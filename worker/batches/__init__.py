"""Micro-batches: planned by the driver, read, transformed and written by tasks, applied as a whole."""
