"""Health of a node: it is healthy only if every factor is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Factor:
    """One thing that must be so.

    Args:
        fall: Failures in a row after which it is not healthy.
        rise: Passes in a row after which it is healthy again.
    """

    fall: int
    rise: int
    is_healthy: bool | None = None
    """None: nothing is known yet. The first result decides."""
    reason: str = ""
    _in_a_row: int = 0

    def note(self, *, passed: bool, reason: str = "", definite: bool = False) -> None:
        """Take a result.

        Args:
            passed: Whether it was so.
            reason: Why not.
            definite: A failure that leaves no doubt: it counts at once.
        """
        if passed == self.is_healthy:
            self._in_a_row = 0
            self.reason = reason
            return
        self._in_a_row += 1
        needed = self.rise if passed else self.fall
        if self.is_healthy is None or definite or self._in_a_row >= needed:
            self.is_healthy = passed
            self.reason = reason
            self._in_a_row = 0


@dataclass(slots=True)
class Health:
    """The factors of a node, by name."""

    factors: dict[str, Factor] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        return all(factor.is_healthy for factor in self.factors.values())

    @property
    def is_known(self) -> bool:
        return all(factor.is_healthy is not None for factor in self.factors.values())

    def reasons(self) -> list[str]:
        """Return why it is not healthy."""
        return [
            f"{name}: {factor.reason or 'not known yet'}"
            for name, factor in sorted(self.factors.items())
            if not factor.is_healthy
        ]
