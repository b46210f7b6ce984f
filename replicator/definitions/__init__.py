"""Capture of definitions: what a group has at its source so that altered tables are told of in the write-ahead log.

``capture`` is the door: find, install, remove. ``installation`` lists the objects, the others hold the functions' text.
"""
