"""What ``pgsluice check`` looks at in the source, and what a replicator's first session looks at before it makes anything."""
