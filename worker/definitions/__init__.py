"""What a worker does when a table of the source is altered: what is to become of it, who is asked, and what is noted."""
