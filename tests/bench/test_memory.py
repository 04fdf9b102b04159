"""What the memory of a process is, from what the kernel and Java say of it."""

import os
from pathlib import Path

import pytest

from bench.whole.memory import (
    C_HEAP,
    CODE,
    FILES,
    HEAP,
    METASPACE,
    PARTS,
    PYTHON,
    Region,
    heap_used,
    memory_figures,
    memory_of,
    parts_of_java,
    regions,
    tracked,
)

MIB = 1024 * 1024
SMAPS = """\
e0000000-e64a0000 rw-p 00000000 00:00 0 
Size:             102912 kB
Rss:              102400 kB
Pss:              102400 kB
Pss_Dirty:        102400 kB
7f5fb0bc7000-7f5fb8ec7000 rw-p 00001000 fe:00 10463624                   /jars/spark one.jsa
Pss:               51200 kB
7f5fb9000000-7f5fb9200000 rwxp 00000000 00:00 0 
Pss:                2048 kB
563de0f07000-563de44eb000 rw-p 00000000 00:00 0                          [heap]
Pss:               54272 kB
"""  # noqa: W291 - as the kernel writes it
HEAP_INFO = """\
 def new generation   total 39296K, used 29K [0x00000000e0000000, 0x00000000e2aa0000, 0x00000000eaaa0000)
  eden space 34944K,   0% used [0x00000000e0000000, 0x00000000e0000000, 0x00000000e2220000)
 tenured generation   total 87424K, used 1000K [0x00000000eaaa0000, 0x00000000f0000000, 0x0000000100000000)
   the space 87424K,   1% used [0x00000000eaaa0000, 0x00000000eaaaf000, 0x00000000eaaaf000, 0x00000000f0000000)
 Metaspace       used 9000K, committed 10240K, reserved 1114112K
  class space    used 900K, committed 1024K, reserved 1048576K
"""  # noqa: E501 - as Java writes it
CODE_CACHE = """\
CodeHeap 'non-profiled nmethods': size=120028Kb used=1Kb max_used=1Kb free=120027Kb
 bounds [0x00007f5fb9000000, 0x00007f5fb9270000, 0x00007f5fc0537000]
 total_blobs=200 nmethods=1 adapters=100
"""
NATIVE_MEMORY = """\
Total: reserved=1500000KB, committed=400000KB
-                 Java Heap (reserved=524288KB, committed=126720KB)
                            (mmap: reserved=524288KB, committed=126720KB)

-                     Class (reserved=1048768KB, committed=2048KB)
"""


def test_a_region_is_of_a_file_or_of_none() -> None:
    assert regions(SMAPS) == [
        Region(0xE0000000, 0xE64A0000, "", 100 * MIB),
        Region(0x7F5FB0BC7000, 0x7F5FB8EC7000, "/jars/spark one.jsa", 50 * MIB),
        Region(0x7F5FB9000000, 0x7F5FB9200000, "", 2 * MIB),
        Region(0x563DE0F07000, 0x563DE44EB000, "", 53 * MIB),
    ]


def test_parts_of_a_jvm_are_the_whole() -> None:
    parts = parts_of_java(regions(SMAPS), HEAP_INFO, CODE_CACHE)
    assert parts == {
        HEAP: 100 * MIB,
        METASPACE: 10 * MIB,
        CODE: 2 * MIB,
        FILES: 50 * MIB,
        C_HEAP: 43 * MIB,
    }
    assert sum(parts.values()) == sum(one.pss_bytes for one in regions(SMAPS))


def test_what_java_says_of_its_heap_and_of_itself() -> None:
    assert heap_used(HEAP_INFO) == 1029 * 1024
    assert tracked(NATIVE_MEMORY) == {"Java Heap": 126720 * 1024, "Class": 2 * MIB}
    assert tracked("Native memory tracking is not enabled\n") == {}


def test_the_sum_is_of_all_processes_and_of_no_part_twice() -> None:
    figures = {one.name: value for one, value in memory_figures({"tests": os.getpid()}).items()}
    assert figures["memory, whole system"] == figures["memory, tests"]
    assert figures["memory, tests, Python"] == figures["memory, tests"] > 10
    assert PYTHON in PARTS


def test_a_process_that_has_ended_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_self: Path, **_more: object) -> str:
        raise ProcessLookupError

    monkeypatch.setattr(Path, "read_text", gone)
    assert memory_of({"gone": os.getpid()})["gone"] == {}
