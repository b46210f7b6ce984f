"""What source and target have in common as PostgreSQL servers. Replicator and worker may import it."""
