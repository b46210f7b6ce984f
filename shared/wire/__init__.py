"""The wire: names, positions, and the formats of messages. Pure: it imports nothing but errors."""
