"""The source: connections, its catalog, what is published and the replication slot."""
