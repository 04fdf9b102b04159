"""Checkers and their verdicts.

A checker looks at each operation through methods named `on_<f>_<type>` and tells the rest in
`finish`. It never guesses: a case that the history does not decide is counted as unknown.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from resilience.history import Operation
from resilience.world import World


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings of one checker in one history, or in several.

    Attributes:
        checked: Cases that the history decides.
        unknown: Cases that it leaves open.
        kinds: Violations by kind.
        witness: Lines of the operations that show one violation, as few as there are.
    """

    name: str
    clause: str
    promise: str
    checked: int
    unknown: int
    kinds: dict[str, int]
    witness: tuple[int, ...] = ()
    operations: tuple[Operation, ...] = field(default=(), compare=False)

    @property
    def violations(self) -> int:
        return sum(self.kinds.values())

    @property
    def bound(self) -> float | None:
        """The rate that 0 violations of `checked` exclude at 95 %: 3/n; None for 0 cases."""
        return min(1.0, 3 / self.checked) if self.checked else None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "clause": self.clause,
            "promise": self.promise,
            "checked": self.checked,
            "violations": self.violations,
            "kinds": self.kinds,
            "unknown": self.unknown,
            "at_most": None if self.violations else self.bound,
            "witness": [
                {"line": line, **operation}
                for line, operation in zip(self.witness, self.operations, strict=False)
            ]
            or list(self.witness),
        }


class Checker:
    """The base of all checkers."""

    name: ClassVar[str]
    clause: ClassVar[str]
    """The clause or the promise that it tests, in words."""
    promise: ClassVar[str]
    """The key under `[promises]` of a target; one that says false there is not blamed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checked = 0
        self.unknown = 0
        self.kinds: Counter[str] = Counter()
        self.witness: tuple[int, ...] = ()

    def blame(self, kind: str, *lines: int) -> None:
        """Count a violation; keep its lines if there is no smaller witness."""
        self.kinds[kind] += 1
        witness = tuple(sorted({line for line in lines if line}))
        if not self.witness or _size(witness) < _size(self.witness):
            self.witness = witness

    def finish(self) -> None:
        """Decide the cases that only the end of the history decides."""

    def verdict(self) -> Verdict:
        return Verdict(
            name=self.name,
            clause=self.clause,
            promise=self.promise,
            checked=self.checked,
            unknown=self.unknown,
            kinds=dict(self.kinds),
            witness=self.witness,
        )


def _size(witness: tuple[int, ...]) -> tuple[int, int]:
    return len(witness), witness[-1] - witness[0] if witness else 0
