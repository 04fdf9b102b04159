"""What is asked of a JVM, with this process in its place."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqlake.errors import OperationalError
from streaming.jvm.attach import ask_jvm


@contextmanager
def _java(answer: str) -> Iterator[list[bytes]]:
    """Answer in the place of Java in this process."""
    path = f"/tmp/.java_pid{os.getpid()}"
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(100))
                connection.sendall(answer.encode())

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield heard
        finally:
            serving.join()
            Path(path).unlink()


def test_java_is_asked_as_jcmd_does() -> None:
    with _java("0\nall is well\n") as heard:
        assert ask_jvm(os.getpid(), "GC.heap_info") == "all is well\n"
    assert heard == [b"1\0jcmd\0GC.heap_info\0\0\0"]


def test_java_that_refuses_is_told() -> None:
    with (
        _java("100\nUnknown diagnostic command\n"),
        pytest.raises(OperationalError, match=r"refuses X\.y: Unknown diagnostic command"),
    ):
        ask_jvm(os.getpid(), "X.y")
