"""A pipeline on the servers that tests share."""

from __future__ import annotations

from tests.replicator.pipelines.conftest import pipeline as pipeline
