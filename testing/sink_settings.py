"""Settings of a worker that is never started, for its sink alone."""

from __future__ import annotations

from pgsluice.shared.config.declaration import make
from pgsluice.shared.config.load import load_given
from pgsluice.shared.config.settings import WorkerSettings

_NOBODY = "nats://nobody.invalid:4222"


def worker_settings(name: str = "sink", group: str = "tests", **options: str) -> WorkerSettings:
    """Returns settings with the defaults of all options, except ``options``, by their names with underscores. A sink
    that keeps its position with ``BucketPositions`` needs ``nats_url``."""
    given = {key.replace("_", "-"): text for key, text in options.items()}
    return make(WorkerSettings, load_given({"group": group, "name": name, "nats-url": _NOBODY} | given, WorkerSettings))
