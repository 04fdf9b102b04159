"""Outputs of rules for a message, and the outcomes of their actions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from api.rules.materialised import Entry
from api.tracing.deliveries import Traced
from api.tracing.scan import Seen
from api.tracing.views import ActionTrace, DeadLetterTrace, OutputTrace, RuleTrace
from mqlake.errors import InvalidRecord
from mqlake.records.messages import HEADER_ID, HEADER_OUTPUT
from mqlake.records.outputs import DeadLetter, Output, decode_dead_letter, decode_output
from rules.runner.checkpoint import Checkpoint, LaneKey, ReadPositions

INBOUND_SOURCE: Final = "i"
MOST_ROW_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class MadeOutput:
    output: Output
    partition: int
    """Partition of `mqlake.outputs`; so is the offset."""
    offset: int
    at_ms: int

    @property
    def output_id(self) -> str:
        return f"{self.output.rule}/{self.output.version}/{self.output.position}"


@dataclass(slots=True)
class RuleFindings:
    """Records of rules and one message in the log and the tables."""

    traced: Traced
    tenant: str
    outputs: list[MadeOutput] = field(default_factory=list)
    letters: list[tuple[str, int, DeadLetterTrace, int]] = field(default_factory=list)
    """Rule, version, letter, and the index of the output for an action's."""
    published: dict[str, str] = field(default_factory=dict)
    """Identifier of an action on an output -> that of the message that it published."""
    table_rows: set[str] = field(default_factory=set)
    """Identifiers of outputs that are in a table."""
    tables_read: set[str] = field(default_factory=set)
    """Tables of rules that were read."""
    checkpoint: Checkpoint | None = None

    def take_output(self, record: Seen) -> bool:
        """Take a record of the partition of `mqlake.outputs`; true: ours cannot come any more."""
        try:
            output = decode_output(record.key, record.value, [*record.headers.items()])
        except InvalidRecord:
            return False
        position = output.position
        if position.source != INBOUND_SOURCE or position.partition != self.traced.partition:
            return False
        if position.offset > self.traced.offset:
            return True
        made = MadeOutput(output, record.partition, record.offset, record.timestamp_ms)
        known = {one.output_id for one in self.outputs}
        is_ours = position.offset == self.traced.offset and output.tenant == self.tenant
        if is_ours and made.output_id not in known:
            self.outputs.append(made)
        return False

    def take_letter(self, record: Seen) -> bool:
        """Take a record of `mqlake.dead_letters`."""
        try:
            letter = decode_dead_letter(record.key, record.value, [*record.headers.items()])
        except InvalidRecord:
            return False
        position = letter.position
        place = (position.partition, position.offset)
        source = position.source.partition(".")[0]
        if source == INBOUND_SOURCE and place == (self.traced.partition, self.traced.offset):
            self._add(letter, record.timestamp_ms)
        return False

    def _add(self, letter: DeadLetter, at_ms: int) -> None:
        shown = DeadLetterTrace(
            stage=letter.stage, action=letter.action, error=letter.error, at=_time(at_ms)
        )
        if letter.tenant == self.tenant and letter.stage != "rerun":
            self.letters.append((letter.rule, letter.version, shown, letter.position.index))

    def take_letter_row(self, row: Mapping[str, Any]) -> None:
        """Take a row of the table `dead_letters`."""
        if row["stage"] != "rerun":
            shown = DeadLetterTrace(
                stage=row["stage"],
                action=row["action"],
                error=row["error"],
                at=_time(row["at_ms"]),
            )
            self.letters.append((row["rule"], row["rule_version"], shown, row["index"]))

    def take_published(self, record: Seen) -> bool:
        """Take a message of `mqlake.inbound` that a rule may have published for one of ours."""
        action_id = record.headers.get(HEADER_OUTPUT, b"").decode(errors="replace")
        if any(action_id.startswith(f"{made.output_id}/") for made in self.outputs):
            self.published.setdefault(action_id, record.headers.get(HEADER_ID, b"").hex())
        return False


def trace_rules(findings: RuleFindings, entries: Sequence[Entry]) -> list[RuleTrace]:
    """Return traces of the rules that gave outputs for the message, or failed on it."""
    actions: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for entry in entries:
        for span in [] if entry.activation is None else entry.activation.spans:
            actions[entry.rule.id, span.version] = list(span.actions)
        named = [one.model_dump() for one in entry.rule.actions]
        actions.setdefault((entry.rule.id, entry.rule.version), named)
    left = {(one.output.rule, one.output.version) for one in findings.outputs}
    left |= {(rule, version) for rule, version, _, _ in findings.letters}
    return [_trace_rule(findings, name, actions.get(name, [])) for name in sorted(left)]


def _trace_rule(
    findings: RuleFindings, name: tuple[str, int], actions: list[dict[str, Any]]
) -> RuleTrace:
    outputs = [one for one in findings.outputs if (one.output.rule, one.output.version) == name]
    return RuleTrace(
        rule_id=name[0],
        version=name[1],
        basis="recorded",
        detail=f"{len(outputs)} rows" if outputs else "it gave no row: see the dead letters",
        outputs=[_trace_output(findings, made, actions) for made in outputs],
        dead_letters=[shown for *which, shown, _ in findings.letters if tuple(which) == name],
    )


def _trace_output(
    findings: RuleFindings, made: MadeOutput, actions: list[dict[str, Any]]
) -> OutputTrace:
    row = made.output.row
    return OutputTrace(
        output_id=made.output_id,
        row=_load(row) if len(row) <= MOST_ROW_BYTES else None,
        at=_time(made.at_ms),
        actions=[
            _trace_action(findings, made, index, str(one.get("function")))
            for index, one in enumerate(actions)
        ],
    )


def _trace_action(
    findings: RuleFindings, made: MadeOutput, index: int, function: str
) -> ActionTrace:
    action = f"{index}/{function}"
    found = ActionTrace(
        action=action, outcome="unknown", basis="unknown", detail="", message_id=None
    )
    output = made.output
    errors = [
        letter.error
        for rule, version, letter, at in findings.letters
        if (rule, version, letter.action, at)
        == (output.rule, output.version, action, output.position.index)
    ]
    message_id = findings.published.get(f"{made.output_id}/{index}")
    if errors:
        found.outcome, found.basis, found.detail = "failed", "recorded", errors[-1]
    elif message_id is not None:
        found.outcome, found.basis, found.message_id = "done", "recorded", message_id
        found.detail = "published"
    elif function == "table":
        if made.output_id in findings.table_rows:
            found.outcome, found.basis = "done", "recorded"
            found.detail = "the row is in the table"
        elif output.rule in findings.tables_read:
            found.outcome, found.basis = "waiting", "recorded"
            found.detail = "the row is not in the table yet"
        else:
            found.detail = "the table was not read"
    elif findings.checkpoint is None:
        found.detail = "the position of the runner of actions is not known"
    elif _is_behind(findings.checkpoint, made, findings.tenant, index):
        found.outcome, found.basis = "waiting", "recorded"
        found.detail = "the runner has not come to it yet, or tries it again"
    else:
        found.outcome, found.basis = "done", "recorded"
        found.detail = "the runner's checkpoint is past it, and there is no dead letter"
    return found


def _is_behind(checkpoint: Checkpoint, made: MadeOutput, tenant: str, index: int) -> bool:
    lane = checkpoint.behind.get(LaneKey(tenant, made.output.rule, made.output.version, index))
    return any(
        _is_before(positions, made)
        for positions in (checkpoint.positions, lane)
        if positions is not None
    )


def _is_before(positions: ReadPositions, made: MadeOutput) -> bool:
    position = positions.get(made.partition)
    return position is None or position.offset <= made.offset


def _load(row: bytes) -> Any:
    try:
        return json.loads(row)
    except ValueError:
        return None


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=UTC)
