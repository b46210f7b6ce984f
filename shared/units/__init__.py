"""In which state each process of a group is, for people and for alerts."""
