"""The processes of a group, for users: their states, and pause, resume, stop and start."""
