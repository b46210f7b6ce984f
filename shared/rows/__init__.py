"""Rows as columns: stream messages decoded for rules and sinks, and COPY text.

Pure. Rules, worker and console may enter; the replicator may not, for NumPy is needed here. ``columns.decode_changes``
decodes changes into the types of ``changes``.
"""
