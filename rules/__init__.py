"""Rules, then routes, which a worker applies to changes before a sink sees them, on whole columns.

Pure, except modules that read files, as their docstrings note. Imports ``shared`` only; workers use it, and the
console, which tries files out.
"""
