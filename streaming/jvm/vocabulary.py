"""What both languages know, said once, in Python: a class of constants is written for Java from it.

It is compiled with our sources (`streaming.jvm.compiler`). For an editor,
`python -m streaming.jvm.vocabulary FOLDER` writes it into a folder.
"""

import json
import sys
from pathlib import Path
from typing import Final

from mqlake import records
from mqlake.record_versions import HEADER_MQTT, NEWEST_READ, OLDEST_READ
from mqlake.rule_records import (
    DECIDED_KEY,
    EVENTS_PREFIX,
    HEADER_MAC,
    KEY_LETTERS,
    MAX_CHAIN,
    MAX_FAILURES_TOLD,
    RULE_FAILED,
    RULES_BARRIER_PREFIX,
    UNNAMED_RULE,
)
from mqlake.sharing import ShareStrategy
from mqlake.tenants import DEFAULT_TENANT
from mqlake.topics import SHARE_PREFIX
from rules.columns import ROW

FILE: Final = Path("mqlake", "Vocabulary.java")
STATEFUL_SENDER: Final = "stateful"
"""Under this name the records of rules with memory wait for targets that are away."""
KEY_OPTION: Final = "mqlake.rules.key"
"""Beside the options of a Kafka client: the key by which activations are signed."""
_HEADERS: Final = (
    *("ID", "CLIENT_ID", "USERNAME", "ORIGIN", "PROPERTIES", "PEERHOST", "TRACEPARENT", "SOURCE"),
    *("BY", "NUMBER", "RULE", "OUTPUT", "CHAIN", "TS", "TOPIC", "STAGE", "ERROR"),
    *("EVENT_TIME", "WATERMARK"),
)

CONSTANTS: Final[dict[str, str | int]] = {
    "BARRIER_PREFIX": records.BARRIER_KEY_PREFIX.decode(),
    "QUESTION_PREFIX": records.QUESTION_KEY_PREFIX.decode(),
    "RULES_BARRIER_PREFIX": RULES_BARRIER_PREFIX.decode(),
    "RETAINED_PREFIX": records.RETAINED_FILTER_PREFIX,
    "SHARE_PREFIX": SHARE_PREFIX,
    "DEFAULT_TENANT": DEFAULT_TENANT,
    "FLAG_QOS": records.FLAG_QOS,
    "FLAG_RETAIN": records.FLAG_RETAIN,
    "FLAG_DUP": records.FLAG_DUP,
    "FLAG_UNSHARED": records.FLAG_UNSHARED,
    "OLDEST_READ": OLDEST_READ,
    "NEWEST_READ": NEWEST_READ,
    "HEADER_MQTT": HEADER_MQTT,
    **{f"HEADER_{name}": getattr(records, f"HEADER_{name}") for name in _HEADERS},
    **{f"STRATEGY_{name.name}": at for at, name in enumerate(ShareStrategy)},
    "STRATEGIES": ",".join(ShareStrategy),
    "DECIDED_KEY": DECIDED_KEY.decode(),
    "DEFINITION_PREFIX": f"{KEY_LETTERS['definition']}/",
    "ACTIVATION_PREFIX": f"{KEY_LETTERS['activation']}/",
    "EVENTS_PREFIX": EVENTS_PREFIX,
    "RULE_FAILED": RULE_FAILED,
    "MAX_FAILURES_TOLD": MAX_FAILURES_TOLD,
    "MAX_CHAIN": MAX_CHAIN,
    "UNNAMED_RULE": UNNAMED_RULE,
    "STATEFUL_SENDER": STATEFUL_SENDER,
    "KEY_OPTION": KEY_OPTION,
    "HEADER_MAC": HEADER_MAC,
    **{f"COLUMN_{column.name.upper()}": at for at, column in enumerate(ROW)},
    "COLUMN_COUNT": len(ROW),
    "COLUMNS": ", ".join(f"{column.name} {column.type}" for column in ROW),
}
"""Row columns are by their ordinals; lists are one text, with commas."""


def java_source() -> str:
    """Return the source of the class."""
    lines = [
        "package mqlake;",
        "",
        "/** What Python and Java both know; streaming/jvm/vocabulary.py has written it. */",
        "public final class Vocabulary {",
        *(f"    public static final {_declared(name)};" for name in CONSTANTS),
        "",
        "    private Vocabulary() {",
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def write_source(folder: Path) -> Path:
    """Write the class below a folder of sources."""
    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(java_source(), encoding="utf-8")
    return path


def _declared(name: str) -> str:
    value = CONSTANTS[name]
    kind = "int" if isinstance(value, int) else "String"
    return f"{kind} {name} = {json.dumps(value)}"


if __name__ == "__main__":
    write_source(Path(sys.argv[1]))
