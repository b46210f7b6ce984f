"""Bounds on what the documents of groups may name. The administrator sets them in section ``groups`` of the places file.

    groups:
      variables: ["SHOP_*"]
      hosts: ["*.example.com", 10.0.0.0/8]
      directories: [/etc/pgsluice/shop]
      sinks: [postgres, "shop.sinks:*"]
      alert-commands: [/usr/local/bin/tell]
      spark: ["spark.sql.*"]

The author of a document chooses where a server connects, and which variables and files of its machine the server sends there.
Where the server runs processes, the author also chooses what those processes start. So a server checks every document against
these bounds when the document is stored, and again whenever it is used: any client of the broker may have stored it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from pgsluice.console.documents.group_document import GroupDocument, format_document, values_of, worker_entries
from pgsluice.console.flags import known_options
from pgsluice.shared.config.file import expand, variables_in
from pgsluice.shared.config.kinds import Kind, Raw, parse, parse_list
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.postgres_url import url_parts
from pgsluice.shared.errors import UsageError
from pgsluice.shared.spark.spark_settings import is_local
from pgsluice.worker.sinks.sink_registry import SINKS

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ADDRESSES = ("search-url", "kafka-brokers", "source-kafka-brokers")
"""Options that are lists of addresses or URLs, although their kind is another."""
_MOST_TOLD = 20
_REMEDY = "use only allowed names, or have the administrator allow it in 'groups' of the file that pipelines-places names"


def own_variables(group: str) -> str:
    """Returns the prefix of the names of variables that each document of the group may name."""
    return f"GROUP_{group.upper().replace('-', '_')}_"


@dataclass(frozen=True, slots=True)
class DocumentBounds:
    """Bounds on documents. ``*`` in a text matches any characters. ``variables`` are allowed besides ``own_variables``.
    ``hosts`` are names, addresses and networks; None allows any host. ``directories`` hold the files and outputs that
    documents may name. ``spark`` are Spark settings that are allowed besides memory and a local master. By default, a
    document starts no program and no code except pgsluice's."""

    variables: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    directories: tuple[str, ...] = ()
    sinks: tuple[str, ...] = tuple(SINKS)
    alert_commands: tuple[str, ...] = ()
    spark: tuple[str, ...] = ()

    def check(self, document: GroupDocument, environment: Mapping[str, str]) -> None:
        """Raises UsageError that lists everything that the document names and may not, and no value of a variable.
        ``environment`` resolves its references. Where a variable is not set there, nothing can be connected to or started, and
        its value is not judged."""
        refused = list(dict.fromkeys(self._refused(document, environment)))
        if refused:
            told = ", ".join(refused[:_MOST_TOLD]) + (" and more" if len(refused) > _MOST_TOLD else "")
            raise UsageError(f"the document of group '{document.group}' may not name {told}", _REMEDY)

    def _refused(self, document: GroupDocument, environment: Mapping[str, str]) -> Iterator[str]:
        own, known = own_variables(document.group), {option.name: option for option in known_options()}
        for name in sorted(variables_in(format_document(document))):  # in any place: processes get all of them
            if not name.startswith(own) and not _matches(name, self.variables):
                yield f"the variable {name} (its own begin with {own})"
        for name in document.settings:
            raw, option = document.raw(name), known.get(name)
            if raw is None or option is None or option.no_effect:
                continue
            try:
                given = expand(raw, environment)
            except ValueError:
                continue
            yield from (f"{what} ({name})" for what in self._refused_values(option, given))

    def _refused_values(self, option: Option, given: Raw) -> Iterator[str]:
        """Describes the parts of an option's value that are out of bounds, in words that never repeat the value of a
        reference."""
        if names_files(option):
            for path in values_of(given):
                if path not in option.words and not self._has_file(path):
                    yield "a file that is in none of the directories"
        if self.hosts is not None and any(not self._has_host(host) for host in hosts_of(option, given)):
            yield "a host that is not listed"
        match option.name:
            case "workers":
                for _, kind in worker_entries(given):
                    if not _matches(kind, self.sinks):
                        yield f"the sink {kind}"
            case "alert-command":
                program = next(iter(_listed(given)), "")
                if not _matches(program, self.alert_commands):
                    yield "a program that is not listed in alert-commands"
            case "spark":
                yield from (f"the setting {key}" for key in self._refused_spark(given))

    def _has_file(self, path: str) -> bool:
        """Returns whether the path is in a listed directory. Links are followed: the file that would be opened counts."""
        found = os.path.realpath(os.path.expanduser(path))
        return any(os.path.commonpath([found, folder]) == folder for folder in map(os.path.realpath, self.directories))

    def _has_host(self, host: str) -> bool:
        allowed = self.hosts or ()
        network = _network(host)
        if network is None or "*" in allowed:
            return _matches(host.lower(), allowed)
        return any(_is_within(network, other) for other in map(_network, allowed))

    def _refused_spark(self, given: Raw) -> Iterator[str]:
        try:
            pairs = parse(Kind.PAIRS, given)
        except ValueError:  # loading the document reports it
            return
        assert isinstance(pairs, dict)
        for key, value in pairs.items():
            is_master = key in ("master", "spark.master")
            is_harmless = is_local(value) if is_master else key in ("memory", "spark.driver.memory")
            if not is_harmless and not _matches(key, self.spark):
                yield key


def names_files(option: Option) -> bool:
    """Returns whether the option's value is a path on the machine that reads it."""
    return option.kind is Kind.FILE or option.name.endswith("-dir")


def hosts_of(option: Option, given: Raw) -> list[str]:
    """Returns the hosts that a process with this value connects to, or lets others make it connect to. A malformed value
    counts as one host, because its meaning is unknown."""
    try:
        return [host for text in values_of(given) for host in _hosts(option, text) if host]
    except ValueError:
        return ["?"]


def _hosts(option: Option, text: str) -> Iterator[str]:
    if option.kind is Kind.DATABASE:
        yield from url_parts(text).get("host", "").split(",")
    elif option.parameter == "host":
        yield from (host.strip() for host in text.split(","))
    elif option.kind in (Kind.SERVERS, Kind.URL) or option.name in _ADDRESSES:
        yield from (urlsplit(url if "://" in url else f"//{url}").hostname or "" for url in parse_list(text))
    elif option.name.endswith("allow-hosts"):
        yield from (entry.strip("[]") for entry in parse_list(text))


def _is_within(network: Network, other: Network | None) -> bool:
    match network, other:
        case (ipaddress.IPv4Network(), ipaddress.IPv4Network()):
            return network.subnet_of(other)
        case (ipaddress.IPv6Network(), ipaddress.IPv6Network()):
            return network.subnet_of(other)
        case _:
            return False


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip("[]"))
    except ValueError:
        return None


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _listed(given: Raw) -> tuple[str, ...]:
    return parse_list(given) if isinstance(given, str) else tuple(values_of(given))
