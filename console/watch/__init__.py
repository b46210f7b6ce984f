"""The live screen of ``pgsluice status --watch``: what is looked at, the rates between two looks, and how it is drawn."""
