"""What a killed run has published is remembered for as long as an output may ask."""

from mqlake.records.messages import LogRecord
from rules.runner.checkpoint import ReadPosition
from rules.runner.progress import RunnerProgress
from rules.runner.recovery import Recovery


def test_what_was_published_is_forgotten_when_everything_is_done_with() -> None:
    progress = RunnerProgress({0: ReadPosition(0)})
    published = {b"action"}
    recovery = Recovery({0: 2}, progress, published)
    output = LogRecord(0, 1, 0, b"", b"", [])
    first, second = progress.partitions[0].begin(), progress.partitions[0].begin()
    second.close(ReadPosition(2))
    assert not recovery.look()
    assert recovery.concerns(output)
    assert published == {b"action"}
    first.close(ReadPosition(1))
    assert recovery.look()
    assert not recovery.concerns(output)
    assert not published
