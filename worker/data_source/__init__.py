"""The format "pgsluice" for users' own Spark sessions: a group's changes as rows, read without a trace in the group."""
