"""Rows as columns: stream messages decoded for rules and sinks, and COPY text.

Pure. Rules, worker and console may enter; the replicator may not, for NumPy is needed here. Whoever wants changes decoded calls
``columns.decode_changes`` and gets what ``changes`` describes.
"""
