"""Definitions of the source's tables, each from a change on: sent by the source itself, or read from its catalog.

``capture`` is the interface for the source's part: find, install, remove. ``tracking`` and ``source_definitions`` are a
session's part.
"""
