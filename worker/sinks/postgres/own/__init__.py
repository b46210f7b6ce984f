"""Tables of pgsluice at the target, in schema ``pgsluice``: positions, loaded messages, keys, known tables, parked text.

Their definitions are in ``own_tables``; each of the other modules reads and writes one or two of them, always in the
caller's transaction or connection.
"""
