"""What Python and Java both know is said in Python alone; Java has it as constants."""

import re

import pytest

from mqlake.records import messages as records
from streaming.jvm.compiler import SOURCES
from streaming.jvm.vocabulary import CONSTANTS, java_source

JAVA = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.java"))}
HEADERS = {value for name, value in vars(records).items() if name.startswith("HEADER_")}


def test_texts_and_numbers_are_written_as_java_has_them() -> None:
    source = java_source()
    assert 'String BARRIER_PREFIX = "\\u0000barrier/";' in source
    assert "int FLAG_RETAIN = 4;" in source
    assert source.count("public static final") == len(CONSTANTS)


@pytest.mark.parametrize("constant", CONSTANTS)
def test_java_uses_each_constant(constant: str) -> None:
    assert any(re.search(rf"Vocabulary\.{constant}\b", text) for text in JAVA.values())


def test_java_writes_out_no_header_prefix_stage_or_reason_of_its_own() -> None:
    told = ("STAGE_", "MESSAGE_DROPPED", "TOO_LARGE", "EXPENDABLE_OPTION", "SPARKPLUG_B")
    texts = {
        value
        for name, value in CONSTANTS.items()
        if name.endswith("_PREFIX") or name.startswith(told)
    }
    for path, text in JAVA.items():
        called = re.findall(r'(?<!\w)(?:header|headers\.add|lastHeader)\("([^"]*)"', text)
        assert not HEADERS & set(called), path
        written = {found.replace(r"\0", "\0") for found in re.findall(r'"([^"\n]*)"', text)}
        assert not texts & written, path
