"""``pgsluice rules check``: everything that is wrong with rules and routes, before a worker is given them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pgsluice.rules.transformation_files import check_tables, load_transformation
from pgsluice.shared.wire.table import Table


def run(rules_file: str, routing_file: str, tables: Sequence[Table] | None) -> None:
    """Says on standard output what the files hold. ``tables`` are all that the source has, None when they are not to be looked
    at. Raises UsageError that names everything that is wrong."""
    transformation = load_transformation(rules_file, routing_file)
    if tables is not None:
        check_tables(transformation, tables)
    for warning in transformation.warnings(tables or ()):
        sys.stdout.write(f"warning: {warning}\n")
    rules = sum(len(entry.rules) for entry in transformation.rules.entries)
    compared = f", and they fit the source's {len(tables)} tables" if tables is not None else ""
    sys.stdout.write(
        f"{rules} rules and {len(transformation.routing.routes)} routes are well formed{compared}; hash {transformation.hash}\n"
    )
