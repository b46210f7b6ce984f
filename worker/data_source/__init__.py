"""The format "pgsluice" of somebody's own Spark session: a group's changes as rows, read without a trace in the group."""
