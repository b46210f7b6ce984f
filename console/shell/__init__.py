"""What a person meets first at the terminal: examples in help texts, a first configuration file, completion."""
