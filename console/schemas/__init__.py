"""JSON Schemas of the YAML files that users write, for editors: generated into ``pgsluice/schemas`` from what reads the files."""
