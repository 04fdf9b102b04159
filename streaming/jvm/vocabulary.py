"""Constants of both languages, said once, in Python: a Java class is written from them.

It is compiled with our sources (`streaming.jvm.compiler`). For an editor,
`python -m streaming.jvm.vocabulary FOLDER` writes it into a folder.
"""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from mqlake.records import messages as records
from mqlake.records import outputs as output_records
from mqlake.records import rules as rule_records
from mqlake.records import versions as record_versions
from mqlake.records.outputs import Stage
from mqlake.records.rules import Kind
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.topics.names import SHARE_PREFIX
from mqlake.topics.sharing import ShareStrategy
from rules.columns import ROW
from rules.language import plan
from rules.schemas.model import SPARKPLUG_B
from rules.sql import confined
from rules.sql.functions import RULE_FUNCTIONS
from streaming import queries

FILE: Final = Path("mqlake", "Vocabulary.java")
STATEFUL_SENDER: Final = "stateful"
"""Under this name the records of stateful rules wait for targets that are away."""
KEY_OPTION: Final = "mqlake.rules.key"
"""Beside the options of a Kafka client: the key by which activations are signed."""
EXPENDABLE_OPTION: Final = "mqlake.expendable.folders"
"""Option of Hadoop: comma-separated folders whose files are left to the kernel."""
_STAGES: Final[tuple[Stage, ...]] = ("evaluate", "late")
# fmt: off
_HEADERS: Final = (
    "ID", "CLIENT_ID", "USERNAME", "ORIGIN", "PROPERTIES", "PEERHOST", "TRACEPARENT", "SOURCE",
    "BY", "NUMBER", "SINCE", "RULE", "OUTPUT", "CHAIN", "TS", "TOPIC", "STAGE", "ERROR",
    "EVENT_TIME", "WATERMARK",
)
# fmt: on
_ALIKE: Final[dict[ModuleType, tuple[str, ...]]] = {
    record_versions: (
        "HEADER_MQTT",
        "HEADER_VERSION",
        "RECORD_VERSION",
        "OLDEST_READ",
        "NEWEST_READ",
    ),
    records: (
        "FLAG_QOS",
        "FLAG_RETAIN",
        "FLAG_DUP",
        "FLAG_UNSHARED",
        "MESSAGE_DROPPED",
        "TOO_LARGE",
        "EVENTS",
        "RULES",
        "OUTPUTS",
        "DEAD_LETTERS",
        "METRICS",
        *(f"HEADER_{name}" for name in _HEADERS),
    ),
    rule_records: (
        "RULES_BARRIER_PREFIX",
        "EVENTS_PREFIX",
        "RULE_FAILED",
        "MAX_FAILURES_TOLD",
        "HEADER_MAC",
        "ENGINE",
        "DECIDED_KEY",
    ),
    output_records: ("MAX_CHAIN", "UNNAMED_RULE", "SOURCE_INBOUND", "SOURCE_EVENTS"),
    plan: ("AT_COLUMN", "ROW_COLUMN"),
    confined: ("FUNCTIONS_OPTION", "OWN_STATEMENT", "CONFINED_STATEMENT"),
}
"""By module the constants that have the same name in Java."""


def _text(constant: str | int | bytes) -> str | int:
    return constant.decode() if isinstance(constant, bytes) else constant


CONSTANTS: Final[dict[str, str | int]] = {
    **{name: _text(getattr(module, name)) for module, names in _ALIKE.items() for name in names},
    "BARRIER_PREFIX": records.BARRIER_KEY_PREFIX.decode(),
    "QUESTION_PREFIX": records.QUESTION_KEY_PREFIX.decode(),
    "RETAINED_PREFIX": records.RETAINED_FILTER_PREFIX,
    "SHARE_PREFIX": SHARE_PREFIX,
    "DEFAULT_TENANT": DEFAULT_TENANT,
    **{f"STRATEGY_{name.name}": at for at, name in enumerate(ShareStrategy)},
    "STRATEGIES": ",".join(ShareStrategy),
    **{f"STAGE_{one.upper()}": one for one in _STAGES},
    "DEFINITION_PREFIX": f"{Kind.DEFINITION}/",
    "ACTIVATION_PREFIX": f"{Kind.ACTIVATION}/",
    "STATEFUL_SENDER": STATEFUL_SENDER,
    "STATEFUL_UNDELIVERED": records.undelivered_topic(STATEFUL_SENDER),
    "KEY_OPTION": KEY_OPTION,
    "EXPENDABLE_OPTION": EXPENDABLE_OPTION,
    "QUERY_ROUTER": queries.ROUTER,
    "QUERY_RULES": queries.RULES,
    "SPARKPLUG_B": SPARKPLUG_B,
    "STATE_COLUMN": plan.STATE,
    "SINCE_COLUMN": plan.SINCE,
    **{f"COLUMN_{column.name.upper()}": at for at, column in enumerate(ROW)},
    "COLUMN_COUNT": len(ROW),
    "RULE_FUNCTIONS": confined.listed(RULE_FUNCTIONS),
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
