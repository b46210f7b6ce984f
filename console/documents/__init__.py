"""Desired configurations of groups, as documents in the broker: planned, applied, exported, and run by a server."""
