"""The lake lives through batches that do not fit into its memory: each would come again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.streaming import retained_batches


@pytest.mark.campaign("test_merges.py merges the same way")
@pytest.mark.spark
@pytest.mark.timeout(700)
def test_retained_messages_beyond_the_heap_are_merged(tmp_path: Path) -> None:
    """In a process of its own: Java ends when it has no memory left."""
    ended = subprocess.run(
        [sys.executable, "-m", retained_batches.__name__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    made = [f"{retained_batches.MESSAGES} {batches}" for batches in (1, 2)]
    assert ended.stdout.splitlines() == made, ended.stderr[-3000:]
