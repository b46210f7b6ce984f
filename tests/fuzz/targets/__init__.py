"""The targets: which readers are fed, what they may refuse by, and what must come out the same both ways."""
