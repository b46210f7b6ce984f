"""The server's state of all groups: one read for all clients, its history, and notifications of changes."""
