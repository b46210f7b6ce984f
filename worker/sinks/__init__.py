"""Where changes go: a folder for each sink, and what all of them share.

``sink`` holds the protocol that every sink implements, ``sink_registry`` knows which there are, ``lines`` is for those that write
lines.
"""
