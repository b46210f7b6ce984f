"""What definitions of the source's tables come to: what differs between two of them, and that in words."""
