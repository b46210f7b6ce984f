"""What a user should hear about settings that are no mistakes: what has no effect, and what has another name now."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from pgsluice.shared.config.option import PG_FLO_PREFIX, PREFIX
from pgsluice.shared.config.options import BY_NAME, OPTIONS
from pgsluice.shared.config.values import Notice, Values

_TYPING_ERROR = 0.85
"""Similarity (difflib's ratio) from which an unknown variable is taken for a misspelt one."""


def notices(values: Values, environment: Mapping[str, str]) -> Iterator[Notice]:
    """Names and places only, never a value."""
    for name, place in values.places.items():
        if BY_NAME[name].no_effect:
            yield Notice(name, place, BY_NAME[name].no_effect)
    yield from _misspelt(environment)
    yield from _of_pg_flo(values, environment)


def _misspelt(environment: Mapping[str, str]) -> Iterator[Notice]:
    variables = {option.variable for option in OPTIONS}
    for name in sorted(environment):
        ours = PREFIX + name.removeprefix(PG_FLO_PREFIX) if name.startswith(PG_FLO_PREFIX) else name
        if ours.startswith(PREFIX) and ours not in variables and environment[name].strip():
            nearest = difflib.get_close_matches(ours, variables, n=1, cutoff=_TYPING_ERROR)
            if nearest:
                yield Notice(name, "environment", f"no such variable; did you mean {nearest[0]}?")


def _of_pg_flo(values: Values, environment: Mapping[str, str]) -> Iterator[Notice]:
    """Those that lost to a variable of ours that says something else, and one notice for all that are read."""
    used = {place for places in values.places.values() for place in places.split(", ")}
    renamed = {}
    for option in sorted(OPTIONS, key=lambda option: option.name):
        theirs = environment.get(option.pg_flo_variable, "").strip()
        if option.pg_flo_variable in used:
            renamed[option.pg_flo_variable] = option.variable
        elif theirs and option.variable in used and theirs != environment[option.variable].strip():
            reason = f"{option.variable} says something else, and wins: remove one of them"
            yield Notice(option.pg_flo_variable, "environment", reason)
    if renamed:
        new_names = ", ".join(renamed[name] for name in sorted(renamed))
        message = "variables of pg_flo are read: rename them"
        yield Notice(", ".join(sorted(renamed)), "environment", f"they are called {new_names} here", message)
