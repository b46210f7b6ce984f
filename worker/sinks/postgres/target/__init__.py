"""The target database: connections and their errors, the catalog, existing tables and the creation of tables.

Knows nothing of batches, nor of pgsluice's own tables. Every other folder of the sink may import it.
"""
