"""Tests of the replicator: pure ones, and ones with one real source and one real broker."""
