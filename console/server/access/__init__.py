"""Who may do what on a server, and from where: tokens, links and sessions, and what is asked of every request."""
