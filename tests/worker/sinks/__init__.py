"""Tests of the sinks, one file or package per sink."""
