"""Checks of the source by ``pgsluice check``, and by a replicator's first session before it creates anything."""
