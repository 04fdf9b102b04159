"""The tables of rules, messages and what comes of them, read from their files."""

import json
from pathlib import Path
from typing import Any

from tests.rules.language.evaluation import FAILED, Message

HERE = Path(__file__).parent


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
