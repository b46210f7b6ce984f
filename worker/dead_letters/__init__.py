"""Changes that the target rejects: found, set apart, published, replayed."""
