"""The live screen of ``pgsluice status --watch``: reads of the status, the rates between two of them, and drawing."""
