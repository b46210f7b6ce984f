"""Tests of the NATS sink on a real server."""
