"""Tests of the Postgres sink: pure ones, and ones that drive it against a real server."""
