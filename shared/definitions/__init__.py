"""What definitions of the source's tables come to: what differs between two, that in words, and what people decided."""
