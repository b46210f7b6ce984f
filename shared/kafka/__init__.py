"""The connection to Kafka, as a destination and as a source."""
