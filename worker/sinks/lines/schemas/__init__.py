"""The lines of each format, declared once: as types for a reader in Python.

The files in ``pgsluice/schemas`` are made of them by ``generating``: a JSON Schema of each format, and the same as
types for a reader in TypeScript.
"""
