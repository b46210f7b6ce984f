"""Search sinks on a test's server, whose indexes begin with a prefix of the test's own."""

from __future__ import annotations

from typing import Any

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.worker.sinks.search.mapping_file import MappingFile
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.server_kind import Dialect
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.worker.sinks.settings import worker_settings

NO_OVERRIDES = MappingFile("", ())
DIALECT = Dialect.OPENSEARCH


def search_settings(url: str, prefix: str = "test", **changed: Any) -> SearchSinkSettings:
    settings: dict[str, Any] = {
        "urls": (url,),
        "user": "",
        "password": "",
        "api_key": "",
        "ca_file": "",
        "allow_hosts": ("127.0.0.1",),
        "index": prefix + "_{schema}_{table}",
        "allow_indexes": (),
        "schema_index": "",
        "mapping_file": "",
        "batch_bytes": 5 << 20,
        "connections": 2,
        "timeout_s": 20.0,
        "wait_visible": False,
        "keep_old_s": 86400.0,
    }
    return SearchSinkSettings(**settings | changed)


def new_sink(nats: NatsSettings, group: str, url: str, **changed: Any) -> SearchSink:
    """The group's name is the prefix of its indexes."""
    return SearchSink(worker_settings(group, nats), search_settings(url, group, **changed))
