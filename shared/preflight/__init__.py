"""Problems found before the start, by ``pgsluice check`` and by the starts of both processes."""
