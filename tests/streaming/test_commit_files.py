"""Delta's commits when several processes write: each version is one process's, and whole."""

import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JJavaError

from tests.streaming.conftest import running_gateway

pytestmark = pytest.mark.spark

VERSIONS = 300
LINES = 200


class Writer:
    """One process's way to commit."""

    def __init__(self, gateway: ClientServer, name: str, folder: Path) -> None:
        self.name = name
        self._jvm: Any = gateway.jvm
        self._folder = folder
        self._conf = self._jvm.org.apache.hadoop.conf.Configuration(False)
        self._files = self._jvm.mqlake.spark.CommitFiles(self._conf)

    def write(self, name: str, *, overwrite: bool = False, lines: int = LINES) -> bool:
        """Return whether the name was free."""
        actions = self._jvm.java.util.Collections.nCopies(lines, self.name).iterator()
        path = self._jvm.org.apache.hadoop.fs.Path(str(self._folder / name))
        try:
            self._files.write(path, actions, overwrite, self._conf)
        except Py4JJavaError as exc:
            kind = exc.java_exception.getClass().getName()
            assert kind == "java.nio.file.FileAlreadyExistsException"
            return False
        return True


def test_of_two_processes_that_want_a_version_one_gets_it(
    routing_gateway: ClientServer, routing_jars: list[Path], tmp_path: Path
) -> None:
    won: Counter[str] = Counter()
    # Who is a step ahead would stay there, and have all versions.
    together = threading.Barrier(2, timeout=60)

    def commit(writer: Writer) -> None:
        for version in range(VERSIONS):
            together.wait()
            won[writer.name] += writer.write(f"{version:020}.json")

    with running_gateway(routing_jars) as (_, other):
        writers = [Writer(routing_gateway, "first", tmp_path), Writer(other, "second", tmp_path)]
        threads = [threading.Thread(target=commit, args=(writer,)) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert won.total() == VERSIONS
    assert all(count > 0 for count in won.values()), "they were at it at the same time"
    assert len(list(tmp_path.iterdir())) == VERSIONS, "nothing else is left"
    kept: Counter[str] = Counter()
    for path in tmp_path.iterdir():
        (name,) = set(lines := path.read_text(encoding="utf-8").splitlines())
        assert len(lines) == LINES
        kept[name] += 1
    assert kept == won


def test_what_may_be_replaced_is_replaced_as_a_whole(
    routing_gateway: ClientServer, tmp_path: Path
) -> None:
    for name, lines in (("a", 3), ("b", 1)):
        assert Writer(routing_gateway, name, tmp_path).write("_last", overwrite=True, lines=lines)
    assert [path.name for path in tmp_path.iterdir()] == ["_last"]
    assert (tmp_path / "_last").read_text(encoding="utf-8") == "b\n"
    assert stat.S_IMODE((tmp_path / "_last").stat().st_mode) == 0o600
