"""The first steps at a terminal: examples in help texts, a first configuration file, completion, the version."""
