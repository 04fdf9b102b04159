import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.spark

_HASHES = "print(*(hash(bytes(range(size))) for size in range(64)))"


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="Python has another hash")
def test_it_is_the_hash_that_python_has_for_bytes(routing_jvm: Any) -> None:
    environment = os.environ | {"PYTHONHASHSEED": "0"}  # a key of zeros
    command = [sys.executable, "-c", _HASHES]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    expected = list(map(int, done.stdout.split()))
    padding = b"\xff" * 3
    keyed_hash = routing_jvm.mqlake.routing.KeyedHash
    assert expected == [
        # Of no bytes Python's hash is 0.
        keyed_hash.of(0, 0, padding + bytes(range(size)) + padding, 3, 3 + size) if size else 0
        for size in range(64)
    ]
