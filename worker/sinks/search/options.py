"""The options of the search sink."""

from __future__ import annotations

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind, parse_url
from pgsluice.shared.config.option import Option
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.sink_registry import SinkKind

OPTIONS = "search"
"""Prefix of the names of the options."""


def _urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(parse_url(url) for url in urls)


@settings
class SearchSinkSettings:
    """``urls`` are nodes of one cluster. ``user`` and ``api_key`` are "" for none, and the key goes before the user;
    ``ca_file`` is "" for the machine's trusted authorities. ``index`` is a template; ``allow_indexes`` are patterns of
    its permitted values, empty for anything. ``mapping_file`` is "" for none. ``batch_bytes`` bounds a request before
    it is compressed."""

    urls: tuple[str, ...] = read(
        Option(
            "search-url",
            Kind.LIST,
            "Nodes of the OpenSearch or Elasticsearch cluster; each request uses a reachable node",
            "https://search-1.example.com:9200,https://search-2.example.com:9200",
            required=True,
            secret=True,
            convert=_urls,
        )
    )
    user: str = read(Option("search-user", Kind.TEXT, "User for basic authentication", "pgsluice"))
    password: str = read(
        Option(
            "search-password",
            Kind.TEXT,
            "Password of search-user",
            "${PGSLUICE_SEARCH_PASSWORD:-}",
            secret=True,
            in_file="the password",
        )
    )
    api_key: str = read(
        Option(
            "search-api-key",
            Kind.TEXT,
            "API key, sent in the Authorization header, in place of user and password",
            "${PGSLUICE_SEARCH_API_KEY:-}",
            secret=True,
            in_file="the API key",
        )
    )
    ca_file: str = read(
        Option(
            "search-ca",
            Kind.FILE,
            "CA certificates for the cluster (default: those of the machine)",
            "/etc/pgsluice/search-ca.pem",
        )
    )
    allow_hosts: tuple[str, ...] = read(
        Option(
            "search-allow-hosts",
            Kind.LIST,
            "Allowed hosts for connections: names, addresses, networks (default: public addresses only)",
            "search-1.example.com,10.1.0.0/16",
        )
    )
    index: str = read(
        Option(
            "search-index",
            Kind.TEXT,
            "Alias to search the documents of a table; {schema} and {table} are the table's names",
            "shop-{table}",
            "{schema}_{table}",
        )
    )
    allow_indexes: tuple[str, ...] = read(
        Option(
            "search-allow-indexes",
            Kind.LIST,
            "Allowed names for search-index and search-schema-index (default: any)",
            "shop_*",
        )
    )
    schema_index: str = read(
        Option(
            "search-schema-index",
            Kind.TEXT,
            "Index for the history of schema changes, one document per change (default: none)",
            "pgsluice-schema",
        )
    )
    mapping_file: str = read(
        Option("search-mapping", Kind.FILE, "File of fields and index settings that differ from the defaults", "search.yaml")
    )
    batch_bytes: int = read(
        Option("search-batch-bytes", Kind.SIZE, "Most bytes in one request, unless one document is larger", "10MiB", "5MiB")
    )
    connections: int = read(
        Option(
            "search-connections",
            Kind.NUMBER,
            "Most parallel requests of each task",
            "4",
            "2",
            minimum=1,
            maximum=64,
        )
    )
    timeout_s: float = read(Option("search-timeout", Kind.DURATION, "Timeout of a request", "30s", "20s", minimum=1, maximum=300))
    wait_visible: bool = read(
        Option(
            "search-wait-visible",
            Kind.SWITCH,
            "Wait in each request until searches find the written documents (slow)",
            "true",
            "false",
        )
    )
    keep_old_s: float = read(
        Option("search-keep-old", Kind.DURATION, "Time that an index stays after a newer index has replaced it", "7d", "24h")
    )


def _check(settings: SearchSinkSettings) -> None:
    from pgsluice.shared.http.receiver import check_receiver
    from pgsluice.worker.sinks.search.index_name import flaw_of_name
    from pgsluice.worker.sinks.search.mapping_file import load_mapping

    if bool(settings.user) is not bool(settings.password):
        raise UsageError("of search-user and search-password only one is given", "give both or none")
    if "{table}" not in settings.index:
        raise UsageError(
            f"search-index '{settings.index}' does not hold {{table}}", "each table has a separate index: write shop-{table}"
        )
    if settings.schema_index and (flaw := flaw_of_name(settings.schema_index, settings.allow_indexes)):
        raise UsageError(
            f"search-schema-index is '{settings.schema_index}', which {flaw}",
            "give it another name, in lower case, or allow it",
        )
    for url in settings.urls:
        check_receiver(url, settings.allow_hosts, OPTIONS)
    load_mapping(settings.mapping_file)


SINK = SinkKind(
    settings=SearchSinkSettings,
    sink="pgsluice.worker.sinks.search.sink:SearchSink",
    findings="pgsluice.worker.sinks.search.findings:find",
    summary="Index rows in OpenSearch or Elasticsearch.",
    help="Keep one OpenSearch or Elasticsearch index for each table, with one document for each row.",
    check=_check,
)
