"""The tables of rules, messages and what comes of them, read from their files."""

import csv
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rules.language.compiler import compile_rule
from tests.rules.language.evaluation import FAILED, Message

HERE = Path(__file__).parent
DOCUMENT = (HERE.parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
_EXAMPLE = re.compile(
    r"```sql\n(.+?)```\n\n(?:```csv\n(.+?)```\n\n)?"
    r"(?:```json\n(.+?)```\n\n)?```(?:json|text)\n(.+?)```",
    re.DOTALL,
)


def read_examples() -> list[tuple[str, str, str, str]]:
    """Return the document's examples: the rule, a reference table, what is given, the outputs."""
    return _EXAMPLE.findall(DOCUMENT)


def read_expressions() -> list[tuple[str, Message, Any]]:
    """Return each line's rule, message and expected rows."""
    cases = []
    for line in (HERE / "expressions.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        expression, payload, expected = (part.strip() for part in line.split(" ;; "))
        data = bytes.fromhex(payload[2:]) if payload.startswith("0x") else payload.encode()
        rows = FAILED if expected == FAILED else [{"x": json.loads(expected)}]
        cases.append((f"SELECT {expression} AS x FROM 'a'", Message(payload=data), rows))
    return cases


def read_statements() -> list[tuple[str, Message, Any]]:
    """Return each block's rule, message and expected rows."""
    cases = []
    for block in (HERE / "statements.txt").read_text().split("\n\n"):
        sql: list[str] = []
        fields: dict[str, Any] = {}
        rows: Any = []
        for line in block.splitlines():
            if line.startswith("<"):
                fields = json.loads(line[1:])
            elif line.startswith(">"):
                expected = line[1:].strip()
                rows = FAILED if expected == FAILED else [*rows, json.loads(expected)]
            elif not line.startswith(("#", "--")):
                sql.append(line)
        if sql:
            cases.append(("\n".join(sql), Message().with_fields(fields), rows or None))
    return cases


@dataclass(slots=True)
class StatefulCase:
    """A stateful rule, what it is given, and what it yields.

    Attributes:
        sql: The rule.
        messages: In the order of the log.
        references: Rows of reference tables.
        until_ms: How far time has gone on.
        rows: The outputs, in any order; None is one that fails.
    """

    sql: str = ""
    messages: list[Message] = field(default_factory=list)
    references: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    until_ms: int | None = None
    rows: list[Any] = field(default_factory=list)

    def give(self, fields: dict[str, Any]) -> None:
        """Take a message, or how far time has gone on."""
        if "until" in fields:
            self.until_ms = fields["until"]
            return
        made = Message(timestamp=0).with_fields(fields)
        self.messages.append(replace(made, publish_received_at=made.timestamp))


def read_stateful_cases() -> list[StatefulCase]:
    """Return the cases of stateful rules."""
    cases = []
    for block in (HERE / "stateful.txt").read_text().split("\n\n"):
        case = StatefulCase()
        for line in block.splitlines():
            if line.startswith("<"):
                case.give(json.loads(line[1:]))
            elif line.startswith("@"):
                name, row = line[1:].strip().split(" ", 1)
                case.references.setdefault(name, []).append(json.loads(row))
            elif line.startswith(">"):
                expected = line[1:].strip()
                case.rows.append(None if expected == FAILED else json.loads(expected))
            elif not line.startswith(("#", "--")):
                case.sql = f"{case.sql}\n{line}".strip()
        if case.sql:
            cases.append(case)
    return cases


def read_stateful_examples() -> list[StatefulCase]:
    """Return the document's examples of stateful rules."""
    cases = []
    for sql, table, given, shown in read_examples():
        plan = None if shown == "refused\n" else compile_rule(sql).plan
        if plan is None:
            continue
        case = StatefulCase(sql=sql, rows=[json.loads(line) for line in shown.splitlines()])
        for line in given.splitlines():
            case.give(json.loads(line))
        for reference in plan.references:
            case.references[reference.table] = read_table(table)
        cases.append(case)
    return cases


def read_table(text: str) -> list[dict[str, Any]]:
    """Return the rows of a CSV text; a column of numbers has numbers."""
    rows = list(csv.DictReader(text.splitlines()))
    for name in rows[0]:
        for kind in (int, float, str):
            try:
                made = [kind(row[name]) for row in rows]
            except ValueError:
                continue
            for row, value in zip(rows, made, strict=True):
                row[name] = value
            break
    return rows
