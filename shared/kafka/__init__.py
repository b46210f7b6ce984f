"""How Kafka is reached, as a destination and as a source."""
