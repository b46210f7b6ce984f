"""Copying the rows that are there: page ranges of all tables, read in Spark tasks under one snapshot, published as they are."""
