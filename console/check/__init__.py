"""``pgsluice check``: everything that is wrong, and what cures it, before anything is started. Nothing is touched."""
