"""``pgsluice search``: commands about the indexes of a search worker."""
