"""What a worker shows of itself: what its tasks count, what batches took, and what is looked up now and then."""
