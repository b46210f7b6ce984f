"""Where the worker is: what it has applied, who may apply, and where it goes on."""
