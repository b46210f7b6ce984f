"""Where changes go. ``sink`` holds the protocol every sink implements; each other module or package is one sink."""
