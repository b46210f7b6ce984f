"""PostgreSQL to JetStream: the process that reads one replication slot and publishes what it receives."""
