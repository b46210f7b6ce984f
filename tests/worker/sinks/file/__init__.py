"""Tests of the file sink, on real files."""
