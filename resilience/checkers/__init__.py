"""The checkers, and how a history is put before them.

`check` is a pure function of a header and operations. A further checker is a class in a module
here, named in `CHECKERS`, and a defect of the double that it finds.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from resilience.checkers.base import Checker, Verdict
from resilience.checkers.delivery import (
    DuplicateQos2,
    DuplicateWithoutDup,
    Lost,
    NeverAcknowledged,
    OrderKept,
    Phantom,
    SubackNotRouted,
)
from resilience.checkers.retained import RetainedKept
from resilience.checkers.sessions import PacketId, ReceiveMaximum, SessionPresent, TwoHolders
from resilience.checkers.share import ShareGroup
from resilience.checkers.subscriptions import AfterUnsuback, Crossing, Expired
from resilience.checkers.wills import WillKept
from resilience.errors import HistoryError
from resilience.history import FUNCTIONS, TYPES, Operation, read
from resilience.measures import Measures
from resilience.world import World

CHECKERS: Final[tuple[type[Checker], ...]] = (
    Lost,
    NeverAcknowledged,
    Phantom,
    DuplicateQos2,
    DuplicateWithoutDup,
    OrderKept,
    SubackNotRouted,
    RetainedKept,
    WillKept,
    SessionPresent,
    Expired,
    AfterUnsuback,
    ShareGroup,
    TwoHolders,
    PacketId,
    ReceiveMaximum,
    Crossing,
)

MISSING: Final = frozenset({"lost", "none", "dead member", "missing"})
"""Violations that are over when missing messages come."""

_Handler = Callable[[Operation], None]


class Judgement:
    """All verdicts of one history, and its measures."""

    def __init__(self, header: dict[str, Any], verdicts: list[Verdict], measures: Measures) -> None:
        self.header = header
        self.verdicts = verdicts
        self.measures = measures

    def __getitem__(self, name: str) -> Verdict:
        return next(verdict for verdict in self.verdicts if verdict.name == name)

    @property
    def violated(self) -> list[str]:
        """The names of the checkers that found something."""
        return [verdict.name for verdict in self.verdicts if verdict.violations]


def check(
    header: dict[str, Any],
    operations: Iterable[Operation],
    checkers: Sequence[type[Checker]] = CHECKERS,
) -> Judgement:
    """Judge a history.

    Cost: about 10 µs an operation, one pass; memory for each message and session, not for each
    operation.

    Raises:
        HistoryError: An operation does not fit the ones before it.
    """
    world = World(header)
    judges = [checker(world) for checker in checkers]
    measures = Measures(world)
    handlers = {
        f: {type_: _handlers(f, type_, world, [*judges, measures]) for type_ in TYPES}
        for f in FUNCTIONS
    }
    line = 1
    try:
        for operation in operations:
            line += 1
            world.line = line
            world.time = operation["time"]
            for handle in handlers[operation["f"]][operation["type"]]:
                handle(operation)
    except (KeyError, TypeError, ValueError) as exc:
        raise HistoryError(f"line {line} does not fit: {exc!r}") from exc
    for judge in judges:
        judge.finish()
    measures.finish()
    return Judgement(header, [judge.verdict() for judge in judges], measures)


def is_owing(path: Path) -> bool:
    """Tell whether something that is due has not come, were this history at its end."""
    header, operations = read(path)
    so_far = list(operations)
    if not so_far:
        return False
    end = {"process": "run", "f": "drain", "type": "ok", "time": so_far[-1]["time"]}
    found = check(header, [*so_far, end], (Lost, RetainedKept, WillKept, ShareGroup)).verdicts
    return any(set(verdict.kinds) & MISSING for verdict in found)


def _handlers(f: str, type_: str, world: World, judges: Sequence[object]) -> list[_Handler]:
    """Return the methods for one kind of operation, the world's first."""
    own = getattr(world, f"{f}_{type_}", None)
    found = [getattr(judge, f"on_{f}_{type_}", None) for judge in judges]
    return [handler for handler in (own, *found) if handler is not None]


def check_file(path: Path) -> Judgement:
    """Judge a history in a file; witnesses come with their operations.

    Raises:
        HistoryError: The file is no history.
    """
    header, operations = read(path)
    judgement = check(header, operations)
    wanted = {line for verdict in judgement.verdicts for line in verdict.witness}
    if wanted:
        _, operations = read(path)
        judgement.verdicts = with_operations(judgement.verdicts, operations, wanted)
    return judgement


def with_operations(
    verdicts: Iterable[Verdict], operations: Iterable[Operation], wanted: set[int]
) -> list[Verdict]:
    """Put the operations beside the lines of each witness."""
    found = {line: op for line, op in enumerate(operations, start=2) if line in wanted}
    return [
        Verdict(
            verdict.name,
            verdict.clause,
            verdict.promise,
            verdict.checked,
            verdict.unknown,
            verdict.kinds,
            verdict.witness,
            tuple(found[line] for line in verdict.witness),
        )
        for verdict in verdicts
    ]
