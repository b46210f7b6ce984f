"""The parts to check: the ones that flags name, else all that the configuration names."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pgsluice.console.check.check_settings import NAMED_BY, CheckParts
from pgsluice.shared.errors import UsageError
from pgsluice.shared.preflight.finding import Subject


class AskedParts(enum.StrEnum):
    """The flags."""

    SOURCE = "source"
    TARGET = "target"
    NATS = "nats"
    SINK = "sink"
    RULES = "rules"
    PIPELINES = "pipelines"


@dataclass(frozen=True, slots=True)
class CheckSelection:
    """``sinks`` are kinds. ``machine``: what both processes need here."""

    source: bool
    nats: bool
    rules: bool
    machine: bool
    sinks: tuple[str, ...]
    pipelines: bool = False

    @property
    def subjects(self) -> list[Subject]:
        """Returns the subjects for the report."""
        looked = [
            (self.machine, Subject.MACHINE),
            (self.nats, Subject.NATS),
            (self.source, Subject.SOURCE),
            ("postgres" in self.sinks, Subject.TARGET),
            (any(kind != "postgres" for kind in self.sinks), Subject.SINK),
            (self.rules, Subject.RULES),
            (self.pipelines, Subject.PIPELINES),
        ]
        return [subject for is_looked_at, subject in looked if is_looked_at]


def select(parts: CheckParts, asked: frozenset[AskedParts], sink: str) -> CheckSelection:
    """``sink`` is the kind that --sink names, "" without. Raises UsageError for a part that the configuration does not name."""
    named = tuple(kind for kind in parts.sinks if kind in NAMED_BY)
    has_rules = bool(parts.worker.rules_file or parts.worker.routing_file)
    has_pipelines = bool(parts.pipelines.file or parts.pipelines.places)
    everything = CheckSelection(parts.has_source, parts.nats is not None, has_rules, True, named, has_pipelines)
    if not asked:
        return everything
    sinks = (*(("postgres",) if AskedParts.TARGET in asked else ()), *(_sinks(named, sink) if AskedParts.SINK in asked else ()))
    missing = [
        UsageError(f"--{flag} is given, and the configuration names none: {option} is not set", f"set {option}, or leave it out")
        for flag, option, is_there in (
            (AskedParts.SOURCE, "host", parts.has_source),
            (AskedParts.NATS, "nats-url", parts.nats is not None),
            (AskedParts.RULES, "rules-config or routing-config", has_rules),
            (AskedParts.PIPELINES, "pipelines-config or pipelines-places", has_pipelines),
            (AskedParts.TARGET, "target-host", "postgres" in named),
            (AskedParts.SINK, NAMED_BY.get(sink, " or ".join(NAMED_BY.values())), set(sinks) <= set(parts.sinks) and bool(sinks)),
        )
        if flag in asked and not is_there
    ]
    if missing:
        raise missing[0]
    return CheckSelection(
        AskedParts.SOURCE in asked,
        AskedParts.NATS in asked,
        AskedParts.RULES in asked,
        False,
        tuple(dict.fromkeys(sinks)),
        AskedParts.PIPELINES in asked,
    )


def _sinks(named: tuple[str, ...], sink: str) -> tuple[str, ...]:
    return (sink,) if sink else named
