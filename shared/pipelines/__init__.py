"""What is known of a SQL pipeline's runs and asked of them, and what they are told, wherever they are begun."""
