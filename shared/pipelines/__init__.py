"""Records of a SQL pipeline's runs, requests for them, and their settings."""
