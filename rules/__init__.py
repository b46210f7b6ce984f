"""What a worker does with changes before a sink sees them: rules, then routes, on whole columns.

Pure, but for reading the files that say so. Imports ``shared`` only; workers use it, and the console, which tries files out.
"""
