"""NATS JetStream: connection, streams, bucket, and the records in it. Replicator, worker and console may import it."""
