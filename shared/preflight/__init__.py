"""What is wrong before anything starts, found by ``pgsluice check`` and by the starts of both processes alike."""
