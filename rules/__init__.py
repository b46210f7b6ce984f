"""Pure, columnar transformations of table changes. Imports ``shared`` only and does no I/O."""
