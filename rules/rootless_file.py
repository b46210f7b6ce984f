"""A rules file without ``tables:`` above its tables, as some of pg_flo's own are written.

pg_flo ignores such a file whole and says nothing. Here its rules are in force, and a remark says that this is new: who wrote them
wanted them, and a mask that is silently not there is worse than one that is there at last. What nothing can be made of are
transforms like ``parameters: {operation: lowercase}``, which neither program has; they alone are left out, each with a remark.
Everything else is read as strictly as in any other file.
"""

from __future__ import annotations

from rules.document import Mapping


def is_rootless(root: Mapping) -> bool:
    """Whether each key holds a list of rules. ``rules`` is the root of a file of another shape, and no table's name."""
    keys = root.keys()
    return bool(keys) and not {"tables", "rules"} & set(keys) and all(map(root.is_list_of_mappings, keys))


def remark(path: str, root: Mapping) -> str:
    return (
        f"{path}:{root.line}: there is no 'tables:' above the tables. pg_flo ignores such a file; here its rules are in force"
        " (write 'tables:' above them, or do not give the file)"
    )


def left_out(path: str, rule: Mapping) -> str | None:
    """A remark when the rule, of a file without a root, is one that neither program has; None for any other."""
    parameters = rule.mapping("parameters")
    if parameters is None or rule.text("type") != "transform" or "type" in parameters or "operation" not in parameters:
        return None
    return (
        f"{path}:{rule.line}: {rule.where}: is left out: 'operation: {parameters.text('operation')}' does nothing in pg_flo,"
        " and nothing here"
    )
