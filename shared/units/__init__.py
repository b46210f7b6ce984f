"""The state of each process of a group, for users and for alerts."""
