"""Commands for people that need both sides: the source's catalog, and what a worker makes of changes."""
