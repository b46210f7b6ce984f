"""What the sink itself keeps in the target, in schema pgsluice."""
