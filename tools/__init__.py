"""Tools for a release: its version, its files, and the audit of its packages."""
