"""The option ``retry``: how long to wait before what failed is tried again."""

from __future__ import annotations

from collections.abc import Mapping

from pgsluice.shared.config.kinds import Kind, parse_duration
from pgsluice.shared.config.option import Option
from pgsluice.shared.errors import UsageError
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Pauses, RetryPolicy

_KINDS = tuple(field.replace("_", "-") for field in RetryPolicy._fields)
_FORM = "write it like target=1s..30s"


def retry_policy(pairs: Mapping[str, str]) -> RetryPolicy:
    """Returns the default policy with the kinds in ``pairs`` replaced. Raises UsageError for other kinds, and for
    values that are no pair of pauses."""
    given = {}
    for kind, text in pairs.items():
        if kind not in _KINDS:
            raise UsageError(f"retry has no kind '{kind}'", f"there are {', '.join(_KINDS)}")
        name = kind.replace("-", "_")
        given[name] = _pauses(kind, text)._replace(least=getattr(DEFAULT_POLICY, name).least)
    return DEFAULT_POLICY._replace(**given)


def format_policy(policy: RetryPolicy) -> dict[str, str]:
    """Formats the policy as in the configuration file."""
    return {kind: f"{pauses.first_s:g}s..{pauses.longest_s:g}s" for kind, pauses in zip(_KINDS, policy, strict=True)}


def _pauses(kind: str, text: str) -> Pauses:
    first, dots, longest = text.partition("..")
    try:
        pauses = Pauses(parse_duration(first.strip()), parse_duration(longest.strip()))
    except ValueError:
        raise UsageError(f"retry of {kind}: '{text}' is not a shortest and a longest pause", _FORM) from None
    if not dots or not 0.0 < pauses.first_s <= pauses.longest_s:
        raise UsageError(f"retry of {kind}: '{text}' is not a pause above 0 and one that is no shorter", _FORM)
    return pauses


def _checked(pairs: dict[str, str]) -> dict[str, str]:
    retry_policy(pairs)
    return pairs


RETRY = Option(
    "retry",
    Kind.PAIRS,
    f"First and longest pause between attempts, for a kind of failure ({', '.join(_KINDS)}); repeatable",
    "target=1s..30s",
    convert=_checked,
)
