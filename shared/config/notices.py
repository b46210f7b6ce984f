"""What a user should hear about settings that are no mistakes: what has no effect, and what has another name now."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from pgsluice.shared.config.option import PG_FLO_PREFIX, PREFIX, Option
from pgsluice.shared.config.values import Notice, Values

_TYPING_ERROR = 0.85
"""Similarity (difflib's ratio) from which an unknown variable is taken for a misspelt one."""


def notices(values: Values, environment: Mapping[str, str], known: Collection[Option]) -> Iterator[Notice]:
    """Names and places only, never a value. ``known`` are the options of all commands."""
    for name, place in values.places.items():
        if values.options[name].no_effect:
            yield Notice(name, place, values.options[name].no_effect)
    yield from _misspelt(environment, known)
    yield from _of_pg_flo(values, environment, known)


def _misspelt(environment: Mapping[str, str], known: Collection[Option]) -> Iterator[Notice]:
    variables = {option.variable for option in known}
    for name in sorted(environment):
        ours = PREFIX + name.removeprefix(PG_FLO_PREFIX) if name.startswith(PG_FLO_PREFIX) else name
        if ours.startswith(PREFIX) and ours not in variables and environment[name].strip():
            nearest = difflib.get_close_matches(ours, variables, n=1, cutoff=_TYPING_ERROR)
            if nearest:
                yield Notice(name, "environment", f"no such variable; did you mean {nearest[0]}?")


def _of_pg_flo(values: Values, environment: Mapping[str, str], known: Collection[Option]) -> Iterator[Notice]:
    """Those that lost to a variable of ours that says something else, and one notice for all that are read."""
    used = {place for places in values.places.values() for place in places.split(", ")}
    renamed = {}
    for option in sorted(known, key=lambda option: option.name):
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
