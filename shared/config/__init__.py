"""Configuration: flag, else environment variable, else YAML file, else default, for every key alike.

``load`` merges and checks everything before anything starts; the functions of ``shared.config.produce`` make typed settings
of the result. ``shared.config.options`` is the table behind it.
"""

from pgsluice.shared.config.load import load
from pgsluice.shared.config.notices import notices
from pgsluice.shared.config.produce import (
    drop_settings,
    file_sink_settings,
    group_settings,
    line_shape,
    log_settings,
    postgres_sink_settings,
    replicator_settings,
    source_tables_settings,
    status_settings,
    webhook_sink_settings,
    worker_settings,
)
from pgsluice.shared.config.values import Notice, Values

__all__ = [
    "Notice",
    "Values",
    "drop_settings",
    "file_sink_settings",
    "group_settings",
    "line_shape",
    "load",
    "log_settings",
    "notices",
    "postgres_sink_settings",
    "replicator_settings",
    "source_tables_settings",
    "status_settings",
    "webhook_sink_settings",
    "worker_settings",
]
