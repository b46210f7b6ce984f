"""Membership: the tables of a group, since when, and the record of changes."""
