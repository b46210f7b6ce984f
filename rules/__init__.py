"""Pure, columnar transformations of table changes. Imports ``shared`` only; no I/O but reading the files of rules and routes."""
