"""Whole-group scenarios: real servers, the real program as child processes, one scenario per file."""
