"""Schema changes in a worker: the action for an altered table, the decision it needs, and the record of its outcome."""
