"""A batch's changes folded: what is left of each row, as COPY text."""
