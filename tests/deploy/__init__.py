"""What people deploy from ``deploy/`` and ``docker/``. Tests that need tools of others have the marker ``deploy``."""
