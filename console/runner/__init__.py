"""``pgsluice server --run``: the processes of groups that have a document, on this machine.

They are no limbs of the server: they live on when it ends, and the next one finds them. A group has one runner at a time, by a
lease; a unit one process, by a lock that the process itself holds.
"""
