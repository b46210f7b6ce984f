"""What the server knows of all groups at any time: one look for all who ask, its history, and who is told of what changed."""
