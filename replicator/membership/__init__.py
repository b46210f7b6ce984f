"""Which tables a group has, since when, and who changed that."""
