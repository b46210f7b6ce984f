"""What processes cost: CPU seconds and peak memory of each part of a pipeline, children included."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

GLANCE_INTERVAL_S = 0.5
"""How often the peaks of the roots and a replicator's CPU are noted, which costs little: what has ended says nothing."""

SURVEY_INTERVAL_S = 5.0
"""Measuring the memory of all processes costs a tenth of a second, which a short measurement is spared: it is surveyed at its
start and its end, and memory is rarely given back."""

GLANCES_PER_SURVEY = round(SURVEY_INTERVAL_S / GLANCE_INTERVAL_S)

BENCHMARK = "benchmark"
SERVER = "postgres"
"""How the names of parts end that are PostgreSQL servers."""

REPLICATOR = "replicator"
WORKER = "worker"
WORKER_PARTS = ("worker driver", "worker JVM", "worker tasks")
WHOLE_WORKER = "worker in all"
PARENTS_OF_PARTS = (BENCHMARK, REPLICATOR, "replicator JVM", *WORKER_PARTS[:2])
"""What they start, and reap, is watched as another part."""

ELSEWHERE = "elsewhere"
"""The rest of the machine: when it was busy, figures mean little."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one part.

    ``cpu_s`` was spent within the watch. ``largest_bytes`` is the resident memory of its largest process at that process's own
    peak. ``together_bytes`` is the memory of all its processes, a page that n processes share counted as 1/n in each, at the
    peak of what was seen every SURVEY_INTERVAL_S. PostgreSQL's shared memory and program text are in
    neither.
    """

    cpu_s: float
    largest_bytes: int
    together_bytes: int


class ProcessWatch:
    """A context within which processes are watched (or from ``start`` to ``stop``).

    ``roots`` names the process each part begins with; its descendants belong to it. The part ``worker`` is shown as its driver
    (Python), its JVM, and the JVM's Python processes (``role``; the daemon belongs to the tasks that it forks), and these
    together, with what they have started besides; a replicator that copies has a JVM and tasks as well. ``elsewhere`` is what the
    machine did beside.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = dict(roots)
        self._cpu_before: dict[str, float] = {}
        self._machine_cpu_s = 0.0
        self._cpu: dict[str, float] = {}
        self._largest: dict[str, int] = defaultdict(int)
        self._together: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._survey_for_ever, name="process watch", daemon=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def start(self) -> Self:
        self._survey()
        self._cpu_before = dict(self._cpu)
        self._machine_cpu_s = -_machine_cpu_s()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the watch, before its context does or at its end: the first call counts. What a process cost is known only when
        it has not been reaped before."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._survey()
            self._machine_cpu_s += _machine_cpu_s()

    def add(self, part: str, pid: int) -> None:
        """Watches a process that was started within the watch, from its beginning."""
        with self._lock:
            self._roots[part] = pid

    def cpu_s(self, part: str) -> float:
        """What a part has cost within the watch until now, while it goes on."""
        with self._lock:
            roots = dict(self._roots)
        self._note_cpu(roots)
        return self._spent_s(part)

    def usage(self) -> dict[str, Usage]:
        """After the end of the watch."""
        usage = {part: Usage(self._spent_s(part), self._largest[part], self._together[part]) for part in self._cpu}
        known_s = sum(usage[part].cpu_s for part in usage.keys() - set(WORKER_PARTS))
        usage[ELSEWHERE] = Usage(max(0.0, self._machine_cpu_s - known_s), 0, 0)
        return usage

    def _spent_s(self, part: str) -> float:
        """Of the whole worker the sum lacks its parts' processes that ended unreaped, and the parts lack what ended unseen."""
        spent_s = self._cpu[part] - self._cpu_before.get(part, 0.0)
        if part == WHOLE_WORKER:
            return max(spent_s, sum(self._spent_s(each) for each in WORKER_PARTS if each in self._cpu))
        return spent_s

    def _survey_for_ever(self) -> None:
        for glance in itertools.count(1):
            if self._stop.wait(GLANCE_INTERVAL_S):
                return
            if glance % GLANCES_PER_SURVEY == 0:
                self._survey()
            else:
                self._glance()

    def _glance(self) -> None:
        """At what would be gone at the next survey: a replicator ends its JVM and tasks when it has copied. What the other roots
        start ends after them."""
        with self._lock:
            roots = dict(self._roots)
        for name, pid in roots.items():
            if not name.endswith(SERVER):
                part = WORKER_PARTS[0] if name == WORKER else name
                self._largest[part] = max(self._largest[part], _high_water_mark(pid))
        self._note_cpu({name: pid for name, pid in roots.items() if name == REPLICATOR})

    def _survey(self) -> None:
        """CPU first, for measuring memory takes a while in which processes end."""
        with self._lock:
            roots = dict(self._roots)
        self._note_cpu(roots)
        self._note_memory(roots)

    def _note_cpu(self, roots: Mapping[str, int]) -> None:
        """A process that ended and was reaped has handed its CPU time to its parent, so a part's sum only grows, until the part
        ends: then its last sum counts."""
        cpu: dict[str, float] = defaultdict(float)
        for root, process, is_root in _processes(roots):
            with contextlib.suppress(psutil.NoSuchProcess):
                own_s, ended_s = _cpu_s(process)
                if root == WORKER:
                    cpu[WHOLE_WORKER] += own_s + ended_s
                part = _part(role(root, process, is_root=is_root))
                cpu[part] += own_s if part in PARENTS_OF_PARTS else own_s + ended_s
        with self._lock:
            for part, seconds in cpu.items():
                self._cpu[part] = max(seconds, self._cpu.get(part, 0.0))

    def _note_memory(self, roots: Mapping[str, int]) -> None:
        together: dict[str, int] = defaultdict(int)
        for root, process, is_root in _processes(roots):
            with contextlib.suppress(psutil.NoSuchProcess):
                part = _part(role(root, process, is_root=is_root))
                largest, share = _memory(root, process)
                for name in (part, WHOLE_WORKER) if root == WORKER else (part,):
                    together[name] += share
                    self._largest[name] = max(self._largest[name], largest)
        for name, memory in together.items():
            self._together[name] = max(self._together[name], memory)


def family(pid: int) -> Iterator[psutil.Process]:
    """A process and its descendants, the process first; nothing when it has been reaped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)


def _processes(roots: Mapping[str, int]) -> Iterator[tuple[str, psutil.Process, bool]]:
    """Each with its root's name, and whether it is that root."""
    for name, pid in roots.items():
        for process in family(pid):
            if process.pid == pid or name != BENCHMARK:  # whose children are the other parts
                yield name, process, process.pid == pid


def is_over(pid: int) -> bool:
    """Whether a child of ours has ended. It is not reaped, so that a watch still sees what it cost."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def suspended(pid: int) -> Iterator[None]:
    """A process and all its descendants stand still."""
    psutil.Process(pid).suspend()
    processes = list(family(pid))
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # parents go on first, and end children that were idle for long
                process.resume()


def role(root: str, process: psutil.Process, *, is_root: bool) -> str:
    """What a process of the part ``root`` is for.

    A worker's or a replicator's JVM starts one Python process, the daemon, which forks those that run tasks.
    """
    if root not in (WORKER, REPLICATOR):
        return root
    if is_root:
        return WORKER_PARTS[0] if root == WORKER else root
    if not process.name().startswith("python"):
        return f"{root} JVM"
    parent = process.parent()
    return f"{root} tasks" if parent is not None and parent.name().startswith("python") else f"{root} daemon"


def _part(of_role: str) -> str:
    """A process that was forked hands its costs to the daemon when it ends, so these are one part."""
    return of_role.replace(" daemon", " tasks")


def _cpu_s(process: psutil.Process) -> tuple[float, float]:
    """Its own, and that of its descendants that ended and were reaped."""
    times = process.cpu_times()
    return float(times.user + times.system), float(times.children_user + times.children_system)


def _machine_cpu_s() -> float:
    """What all processes and the kernel have spent since the machine started."""
    times = psutil.cpu_times()
    return float(times.user + times.system + sum(getattr(times, name, 0.0) for name in ("nice", "irq", "softirq")))


def _memory(root: str, process: psutil.Process) -> tuple[int, int]:
    """As in ``Usage``: of the process alone, and its share. The peak is the kernel's (VmHWM of proc(5)) where it keeps one."""
    if root.endswith(SERVER):
        resident = process.memory_info()
        unshared = int(resident.rss - getattr(resident, "shared", 0))
        return unshared, unshared
    memory = process.memory_full_info()
    return max(_high_water_mark(process.pid), memory.rss), int(getattr(memory, "pss", memory.rss))


def _high_water_mark(pid: int) -> int:
    """In bytes; 0 where there is no procfs, or for a process that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
