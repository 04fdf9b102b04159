"""What Java repeats of the shared vocabulary says the same as Python, which owns it."""

import re
from typing import Final

import pytest

from mqlake import records
from mqlake.record_versions import NEWEST_READ, OLDEST_READ
from mqlake.rule_records import RULE_FAILED, RULES_BARRIER_PREFIX
from mqlake.sharing import ShareStrategy
from mqlake.topics import SHARE_PREFIX
from streaming.jvm.compiler import SOURCES
from streaming.rules.plans import SENDER

CONSTANTS: Final[dict[str, object]] = {
    "RouteFunction.BARRIER": records.BARRIER_KEY_PREFIX.decode(),
    "RouteFunction.QUESTION": records.QUESTION_KEY_PREFIX.decode(),
    "RouteFunction.FLAG_RETAIN": records.FLAG_RETAIN,
    "RouteTable.SHARE_PREFIX": SHARE_PREFIX,
    "RouteTable.RETAINED": records.RETAINED_FILTER_PREFIX,
    "MessageRow.FLAG_QOS": records.FLAG_QOS,
    "MessageRow.FLAG_RETAIN": records.FLAG_RETAIN,
    "MessageRow.FLAG_DUP": records.FLAG_DUP,
    "MessageRow.OLDEST_READ": OLDEST_READ,
    "MessageRow.NEWEST_READ": NEWEST_READ,
    "RuleFilter.BARRIER": RULES_BARRIER_PREFIX.decode(),
    "RuleEvaluation.FAILED": RULE_FAILED,
    "OutputTask.SENDER": SENDER,
}
HEADERS: Final = {value for name, value in vars(records).items() if name.startswith("HEADER_")}


def source(class_name: str) -> str:
    return next(SOURCES.rglob(f"{class_name}.java")).read_text(encoding="utf-8")


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_of_java_is_that_of_python(constant: str) -> None:
    class_name, _, name = constant.partition(".")
    pattern = rf'static final [\w\[\]]+ {name} = (?:"(?P<text>[^"]*)"|(?P<number>\d+))'
    found = re.search(pattern, source(class_name))
    assert found is not None, f"{constant} is not in its source"
    text = found["text"]
    value = int(found["number"]) if text is None else text.replace(r"\0", "\0")
    assert value == CONSTANTS[constant]


def test_java_knows_the_strategies_of_share_groups() -> None:
    found = re.search(r"STRATEGIES =\s+new String\[\] \{([^}]*)\}", source("RouteTable"))
    assert found is not None
    assert re.findall(r'"(\w+)"', found[1]) == list(ShareStrategy)


@pytest.mark.parametrize("class_name", ["MessageRow", "RuleEvaluation", "OutputTask"])
def test_java_names_no_header_that_python_does_not(class_name: str) -> None:
    text = source(class_name)
    if class_name == "MessageRow":
        text = text[text.index("private void header(") : text.index("void forget()")]
        names = re.findall(r'case "(\w+)"', text)
    else:
        names = re.findall(r'(?:header|headers\.add)\("(\w+)"', text)
    assert names
    assert set(names) <= HEADERS
