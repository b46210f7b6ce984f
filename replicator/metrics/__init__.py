"""What a replicator shows of itself: what it counts, and what is looked up now and then at the source and in the group."""
