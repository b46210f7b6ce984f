"""Destinations of changes: a folder for each sink, and their common code.

``sink`` holds the protocol that every sink implements, ``sink_registry`` lists the sinks, ``lines`` is for sinks that
write lines.
"""
