"""``pgsluice run`` and ``pgsluice runs``: SQL pipelines, their file, and what became of their runs."""
