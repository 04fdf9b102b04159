"""Checks rules against the rights of their makers, as `mqlake.access` has these now."""

from mqlake.clock import Clock
from mqlake.records.rules import Span
from rules.makers import ALL, MakerRights, Makers, why_not
from rules.model import ActionSpec, Rule
from streaming.rules.changes import RuleProgram, tables_of


class RuleMakers:
    """Authors of the rules, with their rights, as the controller knows them.

    Args:
        clock: Says which keys have expired.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._makers = Makers()
        self._rights: dict[str, MakerRights | None] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take a record of `mqlake.access`.

        Raises:
            InvalidRecord: It cannot be read; its owner has no rights any more.
        """
        self._makers.apply(key, value)

    def note(self, definition: Rule) -> None:
        """Look at the rights of a rule's author from now on."""
        if definition.made_by is not None:
            # Any right that its author lacks by now is news for a rule that is in force.
            self._rights.setdefault(definition.made_by, ALL)

    def is_known(self, definition: Rule) -> bool:
        """Tell whether the author of a rule has any rights."""
        return self._of(definition.made_by) is not None

    def take_changed(self) -> set[str]:
        """Return authors whose rights are others than at the last call: changed, or expired."""
        now = {maker: self._of(maker) for maker in self._rights}
        changed = {maker for maker, rights in now.items() if rights != self._rights[maker]}
        self._rights = now
        return changed

    def why_not(self, definition: Rule, made: RuleProgram | Span) -> str | None:
        """Return why a rule is not within the rights of its author; None: it is."""
        maker = definition.made_by
        why = why_not(
            self._of(maker),
            definition.tenant,
            made.filters,
            sorted(tables_of(made.plan)),
            tuple(ActionSpec.model_validate(one) for one in made.actions),
        )
        return None if why is None else f"made by {maker}, who {why}"

    def _of(self, maker: str | None) -> MakerRights | None:
        return self._makers.rights(maker, self._clock.now_ms())
