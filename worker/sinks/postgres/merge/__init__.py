"""Folded rows staged in the target and merged into its tables, and those found that it refuses.

Everything happens in the caller's session and transaction. For the sink, which merges in the driver, and for the writer and
``copy_load``, which stage and load in tasks.
"""
