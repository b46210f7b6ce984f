"""Changes as lines on standard output."""
