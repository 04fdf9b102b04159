"""Memory of each process of a running system, and what it is.

Sum of PSS: what several processes share is divided among them, so the sum over all processes is
what the system takes. Of a JVM it is divided by address into heap, code and files, and what the JVM
says itself (`jcmd`, which is called without the program: a trimmed Java has none). Native Memory
Tracking is shown where the JVMs were started with it:
JDK_JAVA_OPTIONS=-XX:NativeMemoryTracking=summary.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bench.results.figures import Figures, figure
from bench.systems.processes import MIB, family_of
from streaming.jvm.attach import ask_jvm

_KIB: Final = 1024
_ANSWER_SECONDS: Final = 120.0
"""A JVM answers one question at a time: while it has its archive of classes written, no other."""
_REGION: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)$")
_GENERATION: Final = re.compile(
    r"total (\d+)K, used (\d+)K \[0x([0-9a-f]+), 0x[0-9a-f]+, 0x([0-9a-f]+)\)"
)
_METASPACE: Final = re.compile(r"Metaspace +used \d+K, committed (\d+)K")
_CODE: Final = re.compile(r"bounds \[0x([0-9a-f]+), 0x[0-9a-f]+, 0x([0-9a-f]+)\]")
_TRACKED: Final = re.compile(r"^- +(.+?) \(reserved=\d+KB, committed=(\d+)KB\)", re.MULTILINE)


PARTS: Final = ("Python", "Java heap", "metaspace", "Java code", "files", "C heap and stacks")
PYTHON, HEAP, METASPACE, CODE, FILES, C_HEAP = PARTS
"""Parts of memory; each byte counts in one. Files of a JVM are its archive of classes, libraries
and jars; its C heap and stacks are all that is in no other part."""
HEAP_USED: Final = "Java heap in use"
TRACKED: Final = "tracked, {}"
"""Committed, by Native Memory Tracking."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a process's address space."""

    start: int
    end: int
    path: str
    """Empty when it is no file."""
    pss_bytes: int


def regions(smaps: str) -> list[Region]:
    """Return the regions of a process's address space.

    Args:
        smaps: Content of its file of this name in /proc.
    """
    found: list[Region] = []
    for line in smaps.splitlines():
        if (head := _REGION.match(line)) is not None:
            path = head[3] if head[3].startswith("/") else ""
            found.append(Region(int(head[1], 16), int(head[2], 16), path, 0))
        elif line.startswith("Pss:"):
            last = found[-1]
            found[-1] = Region(last.start, last.end, last.path, int(line.split()[1]) * _KIB)
    return found


def parts_of_java(found: Iterable[Region], heap_info: str, code: str) -> dict[str, int]:
    """Return what the memory of a JVM is, bytes; all parts together are the whole.

    Args:
        found: Its regions.
        heap_info: Its answer to `GC.heap_info`, of the serial collector.
        code: Its answer to `Compiler.codecache`.
    """
    heap = [(int(low, 16), int(high, 16)) for _, _, low, high in _GENERATION.findall(heap_info)]
    codes = [(int(low, 16), int(high, 16)) for low, high in _CODE.findall(code)]
    parts = dict.fromkeys((HEAP, METASPACE, CODE, FILES, C_HEAP), 0)
    for one in found:
        if _is_within(one, heap):
            parts[HEAP] += one.pss_bytes
        elif _is_within(one, codes):
            parts[CODE] += one.pss_bytes
        else:
            parts[FILES if one.path else C_HEAP] += one.pss_bytes
    metaspace = _METASPACE.search(heap_info)
    if metaspace is not None:
        # It is somewhere among what is no file, and committed is used.
        parts[METASPACE] = min(int(metaspace[1]) * _KIB, parts[C_HEAP])
        parts[C_HEAP] -= parts[METASPACE]
    return parts


def heap_used(heap_info: str) -> int:
    """Return how much of the heap is in use, garbage included, bytes."""
    return sum(int(used) * _KIB for _, used, _, _ in _GENERATION.findall(heap_info))


def tracked(native_memory: str) -> dict[str, int]:
    """Return what a JVM has committed by purpose, bytes; nothing when it does not track it."""
    return {name: int(kib) * _KIB for name, kib in _TRACKED.findall(native_memory)}


def memory_of(pids: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return what the memory of each process and its children is, bytes.

    Args:
        pids: By name; a child with a name of its own counts there.

    Raises:
        OperationalError: A JVM does not say what its memory is.
    """
    named = set(pids.values())
    found: dict[str, dict[str, int]] = {}
    for name, pid in pids.items():
        parts: dict[str, int] = {}
        for process in family_of(pid, named):
            try:
                _add(parts, _parts_of(process))
            except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
                continue  # it has ended
        found[name] = parts
    return found


def memory_figures(pids: Mapping[str, int]) -> Figures:
    """Return the memory of each process, what it is, and the sum, MiB.

    Raises:
        OperationalError: A JVM does not say what its memory is.
    """
    figures: Figures = {}
    whole = 0
    for name, parts in memory_of(pids).items():
        size = sum(parts.get(part, 0) for part in PARTS)
        whole += size
        figures[figure(f"memory, {name}", "MiB")] = size / MIB
        for part, of_part in parts.items():
            figures[figure(f"memory, {name}, {part}", "MiB")] = of_part / MIB
    figures[figure("memory, whole system", "MiB")] = whole / MIB
    return figures


def _parts_of(process: psutil.Process) -> dict[str, int]:
    found = regions(Path(f"/proc/{process.pid}/smaps").read_text(encoding="utf-8"))
    if process.name() != "java":
        return {PYTHON: sum(one.pss_bytes for one in found)}
    heap_info = ask_jvm(process.pid, "GC.heap_info", _ANSWER_SECONDS)
    parts = parts_of_java(found, heap_info, ask_jvm(process.pid, "Compiler.codecache"))
    parts[HEAP_USED] = heap_used(heap_info)
    for what, size in tracked(ask_jvm(process.pid, "VM.native_memory")).items():
        parts[TRACKED.format(what)] = size
    return parts


def _add(parts: dict[str, int], more: Mapping[str, int]) -> None:
    for what, size in more.items():
        parts[what] = parts.get(what, 0) + size


def _is_within(one: Region, ranges: list[tuple[int, int]]) -> bool:
    return any(low <= one.start < high for low, high in ranges)
