"""The processes of a group as people see and order them: their states, and pause, resume, stop and start."""
