"""The tests, one file per source file; ``servers`` starts what they run against, ``end_to_end`` uses all of it at once."""
