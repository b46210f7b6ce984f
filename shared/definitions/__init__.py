"""Differences between two definitions of the source's tables, their wording, and operators' decisions about them."""
