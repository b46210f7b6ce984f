"""Definitions of the source, applied to the target's tables in the transaction of the rows around them."""
