"""``pgsluice search``: what people order about the indexes of a search worker."""
