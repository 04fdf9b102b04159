"""What detections tell, said a third time: of whole sequences, without state or timers."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rules.language.plan import Detection


class Message(NamedTuple):
    """Times are milliseconds."""

    time: int
    number: int
    """Its place in the log."""
    holds: bool | None
    value: float | None


class Told(NamedTuple):
    number: int
    """Of the message."""
    at: int
    state: str
    since: int


def expected(
    detection: Detection, messages: Sequence[Message], until: int, keep_ms: int
) -> list[Told]:
    """Return what is told of one key when time has passed up to `until`."""
    known = sorted(one for one in messages if one.time <= until)
    found: list[Told] = []
    for part, end in _parts(known, detection.duration_ms + keep_ms, until):
        tell = {
            "absence": _absence,
            "debounce": _debounce,
            "hysteresis": _hysteresis,
            "n_of_m": _n_of_m,
        }[detection.kind]
        found += tell(detection, part, end)
    return found


def _parts(
    messages: list[Message], longest_pause: int, until: int
) -> Iterator[tuple[list[Message], int]]:
    """Yield messages between pauses behind which a key is forgotten, and when their time ends."""
    part: list[Message] = []
    for message in messages:
        if part and message.time - part[-1].time > longest_pause:
            yield part, message.time
            part = []
        part.append(message)
    if part:
        yield part, until


def _absence(detection: Detection, messages: list[Message], end: int) -> Iterator[Told]:
    duration = detection.duration_ms
    for message, following in pairwise([*messages, None]):
        assert message is not None
        deadline = message.time + duration
        if following is None:
            if deadline <= end:
                yield Told(message.number, deadline, "absent", message.time)
        elif following.time > deadline:
            yield Told(message.number, deadline, "absent", message.time)
            yield Told(following.number, following.time, "present", following.time)


def _debounce(detection: Detection, messages: list[Message], end: int) -> Iterator[Told]:
    run: list[Message] = []
    for message in [*messages, None]:
        if message is not None and message.holds:
            run.append(message)
            continue
        if run:
            deadline = run[0].time + detection.duration_ms
            if message.time > deadline if message is not None else end >= deadline:
                last = [one for one in run if one.time <= deadline][-1]
                yield Told(last.number, deadline, "on", run[0].time)
                if message is not None:
                    yield Told(message.number, message.time, "off", message.time)
        run = []


def _hysteresis(detection: Detection, messages: list[Message], _end: int) -> Iterator[Told]:
    state = "low"
    for message in messages:
        new = state
        if message.value is not None and message.value >= detection.high:
            new = "high"
        elif message.value is not None and message.value <= detection.low:
            new = "low"
        if new != state:
            yield Told(message.number, message.time, new, message.time)
        state = new


def _n_of_m(detection: Detection, messages: list[Message], _end: int) -> Iterator[Told]:
    state = "off"
    for count in range(1, len(messages) + 1):
        window = messages[max(0, count - detection.last) : count]
        new = "on" if sum(bool(one.holds) for one in window) >= detection.least else "off"
        if new != state:
            message = messages[count - 1]
            yield Told(message.number, message.time, new, message.time)
        state = new
