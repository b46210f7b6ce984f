"""Access to a server: tokens, links and sessions, and the checks of every request."""
