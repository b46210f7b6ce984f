"""Posting to addresses that a configuration names."""
