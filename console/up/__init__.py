"""``pgsluice up``: a broker, a replicator and a worker in one terminal, from two URLs and without a file."""
