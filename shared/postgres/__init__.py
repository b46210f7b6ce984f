"""Code for source and target as PostgreSQL servers. Replicator and worker may import it."""
