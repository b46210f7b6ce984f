"""The target database: connections, its tables as they are and as they are made."""
