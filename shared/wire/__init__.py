"""What is on the wire: names, positions, and the formats of messages. It imports nothing but errors."""
