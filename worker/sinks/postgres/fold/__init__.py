"""A partition's changes folded: what is left of each row, as COPY text. Pure: nothing here knows the target.

For the writer, in a task; the receipt that it makes (``piece``) is read by the sink and its merge.
"""
