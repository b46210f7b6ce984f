"""The webhook sink beyond the contract of all sinks."""
