"""How the source's tables are defined, from which change on: told by the source itself, or asked of its catalog.

``capture`` is the door to what makes the source tell: find, install, remove. ``tracking`` and ``source_definitions`` are what a
session has of it.
"""
