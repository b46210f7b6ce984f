"""Replicates PostgreSQL through NATS JetStream and transforms the data on the way.

The packages in this folder are links to the folders of the repository, so that what is installed has one name.
"""
