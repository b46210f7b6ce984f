"""What readers type into the site's search, and a search that ranks as the site's does.

The site's is lunr: BM25 of two fields, the title of a page or section and its text, summed, where a title weighs more
(``docs/theme/search/worker.js``). A section is found by itself; here the page counts that it is of.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

QUERIES: dict[str, frozenset[str]] = {
    query: frozenset(pages.split())
    for query, pages in {
        "change data capture": "index faq",
        "exactly once delivery": "reference/guarantees",
        "initial snapshot": "how-to/copy",
        "resync a table": "how-to/resync how-to/tables",
        "backfill": "how-to/resync faq",
        "add a table": "how-to/tables",
        "schema changes": "how-to/definitions",
        "ALTER TABLE": "how-to/definitions faq",
        "dead letter queue": "how-to/dead-letters",
        "replication lag": "how-to/lag how-to/operate",
        "high availability": "how-to/failover how-to/several-workers faq",
        "failover slot": "how-to/failover how-to/managed-postgresql",
        "PgBouncer": "how-to/poolers-and-networks",
        "transaction pooling mode": "how-to/poolers-and-networks",
        "SSH tunnel": "how-to/poolers-and-networks",
        "IAM authentication": "how-to/poolers-and-networks",
        "TCP keepalive": "how-to/poolers-and-networks",
        "RDS parameter group": "how-to/managed-postgresql",
        "Supabase": "how-to/managed-postgresql",
        "Neon": "how-to/managed-postgresql",
        "managed PostgreSQL": "how-to/managed-postgresql",
        "TOAST": "reference/toast-and-replica-identity",
        "REPLICA IDENTITY FULL": "reference/toast-and-replica-identity",
        "partitioned table": "how-to/partitioned-tables",
        "hypertable": "how-to/partitioned-tables",
        "data types": "reference/types",
        "Avro schema registry": "how-to/sink-kafka faq",
        "mask personal data": "how-to/mask-personal-data how-to/rules",
        "soft deletes": "faq",
        "MySQL": "faq",
        "how many cores": "reference/sizing",
        "memory and CPU sizing": "reference/sizing",
        "Debezium comparison": "explanation/compare",
        "supported versions": "reference/versions",
        "license": "faq",
        "name of the replication slot": "faq",
        "required privileges": "how-to/configure faq",
        "foreign keys and triggers": "how-to/sink-postgres",
        "Kubernetes Helm": "how-to/kubernetes",
        "Prometheus metrics": "how-to/monitor reference/metrics",
    }.items()
}
"""A query → the pages of which one has to be among the first results."""

TITLE_WEIGHT = 1.5

_K1, _B = 1.2, 0.75
_WEIGHTS = {"title": TITLE_WEIGHT, "text": 1.0}
_STOP_WORDS = frozenset(
    ["a", "an", "and", "are", "be", "by", "do", "for", "from", "how", "i", "in", "is", "it", "its", "many", "no"]
)
_STOP_WORDS |= {"not", "of", "on", "or", "the", "to", "was", "with"}
_ENDINGS = (("ies", "y"), ("sses", "ss"), ("ations", "at"), ("ation", "at"), ("ings", ""), ("ing", ""), ("ers", "er"), ("ed", ""))


def words_of(text: str) -> list[str]:
    """The stems of the words, without those that say nothing."""
    plain = (word.strip("_").lower() for word in re.findall(r"\w+(?:['./]\w+)*", text))
    return [_stem(word) for word in plain if word and word not in _STOP_WORDS]


def _stem(word: str) -> str:
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending) + instead
            break
    else:
        word = word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word
    return word.removesuffix("e")


def _page_of(location: str) -> str:
    return location.partition("#")[0].removesuffix(".html")


class SiteSearch:
    """The index of a site that mkdocs built. ``titles`` are those of pages, by their paths without ``.html``."""

    def __init__(self, site: Path) -> None:
        docs = json.loads((site / "search" / "search_index.json").read_text())["docs"]
        self._pages = [_page_of(doc["location"]) for doc in docs]
        self.titles = {_page_of(doc["location"]): doc["title"] for doc in docs if "#" not in doc["location"]}
        self.section_titles = {doc["title"] for doc in docs if "#" in doc["location"]}
        self._counts = [{field: Counter(words_of(doc[field])) for field in _WEIGHTS} for doc in docs]
        self._lengths = [{field: counts[field].total() for field in _WEIGHTS} for counts in self._counts]
        self._mean = {field: sum(length[field] for length in self._lengths) / len(docs) for field in _WEIGHTS}
        self._frequency: Counter[str] = Counter()
        for counts in self._counts:
            for field in _WEIGHTS:
                self._frequency.update(counts[field].keys())

    def pages(self, query: str) -> list[str]:
        """The pages that hold a word of it, the best first, without ``.html``."""
        best: defaultdict[str, float] = defaultdict(float)
        for number, page in enumerate(self._pages):
            score = sum(self._weight(number, word) for word in words_of(query))
            if score:
                best[page] = max(best[page], score)
        return sorted(best, key=lambda page: -best[page])

    def _weight(self, number: int, word: str) -> float:
        rest = len(self._counts) - self._frequency[word]
        rarity = math.log(1 + abs((rest + 0.5) / (self._frequency[word] + 0.5)))
        weight = 0.0
        for field, of_field in _WEIGHTS.items():
            count, length = self._counts[number][field][word], self._lengths[number][field]
            norm = _K1 * (1 - _B + _B * length / self._mean[field])
            weight += of_field * rarity * (_K1 + 1) * count / (norm + count)
        return weight
