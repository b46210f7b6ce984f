"""What makes a release: its version, its files, and whether known vulnerabilities are in it."""
