"""The target database: connections and what their errors mean, the catalog, tables as they are and as they are made.

Knows nothing of batches, nor of the tables that are our own. Every other room of the sink may enter.
"""
