"""The contract of sinks as tests, for whoever writes one."""
