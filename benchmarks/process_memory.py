"""The memory of processes, by what they are for: resident, and with shared pages shared out (proc(5), ``smaps_rollup``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.processes import family, role


@dataclass(frozen=True, slots=True)
class Memory:
    """``rss_bytes`` counts every resident page in full, ``pss_bytes`` one that n processes share as 1/n."""

    rss_bytes: int
    pss_bytes: int


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """Of all processes of one role."""

    processes: int
    rss_bytes: int
    pss_bytes: int
    largest_rss_bytes: int

    @classmethod
    def of(cls, memories: Iterable[Memory]) -> RoleMemory:
        each = list(memories)
        resident = [memory.rss_bytes for memory in each]
        return cls(len(each), sum(resident), sum(memory.pss_bytes for memory in each), max(resident, default=0))


def parse_rollup(text: str) -> Memory:
    """The text of ``/proc/<pid>/smaps_rollup``: a header, then sizes in kB of 1,024 bytes."""
    sizes = {name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in text.splitlines()[1:])}
    return Memory(sizes["Rss"], sizes["Pss"])


def by_role(roots: Mapping[str, int]) -> dict[str, list[Memory]]:
    """Of the processes ``roots``, by the name of their part, and of all their descendants, by role, without those
    that have ended."""
    found: dict[str, list[Memory]] = {}
    for root, pid in roots.items():
        for process in family(pid):
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                memory = parse_rollup(Path(f"/proc/{process.pid}/smaps_rollup").read_text())
                found.setdefault(role(root, process, is_root=process.pid == pid), []).append(memory)
    return found
