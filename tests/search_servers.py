"""The search servers that tests of the search sink run on: parameters of the fixture ``search_server``."""

from __future__ import annotations

import pytest

FAKE = "fake"
OPENSEARCH = pytest.param("opensearch", marks=pytest.mark.search_real)
ELASTICSEARCH_9 = pytest.param(9, marks=pytest.mark.elasticsearch, id="elasticsearch-9")
ELASTICSEARCH_7 = pytest.param(7, marks=pytest.mark.elasticsearch, id="elasticsearch-7")

EVERY = [FAKE, OPENSEARCH, ELASTICSEARCH_9, ELASTICSEARCH_7]
on_real_servers = pytest.mark.parametrize("search_server", EVERY[1:], indirect=True)
"""Marks a test of what the fake one does not do."""
on_servers_that_hide_vectors = pytest.mark.parametrize("search_server", [ELASTICSEARCH_9], indirect=True)

DOES_NOT_FIT = r"(mapper|document)_parsing_exception"
"""Matches what OpenSearch and Elasticsearch call a document with a value that is not of its field's type."""
