"""`docs/rules-language.md`: its snippets give what they show, and its files are there."""

import doctest
import re

from launcher.paths import CHECKOUT

PAGE = CHECKOUT / "docs" / "rules-language.md"
TEXT = PAGE.read_text(encoding="utf-8")
SNIPPET = re.compile(r"^```pycon\n(.+?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"`([\w/]+\.(?:py|txt))`")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_ONLY_FIRST_FAILURE
MOST_LINES = 200
FOLDERS = (CHECKOUT, CHECKOUT / "rules" / "language", CHECKOUT / "tests" / "rules" / "language")


def test_snippets_give_what_they_show() -> None:
    shown = "".join(SNIPPET.findall(TEXT))
    parsed = doctest.DocTestParser().get_doctest(shown, {}, PAGE.name, str(PAGE), 0)
    shown_wrong: list[str] = []
    results = doctest.DocTestRunner(optionflags=FLAGS).run(parsed, out=shown_wrong.append)
    assert results.attempted > 20
    assert not results.failed, "".join(shown_wrong)


def test_files_exist() -> None:
    names = FILE.findall(TEXT)
    assert len(names) > 20
    assert [name for name in names if not any((at / name).is_file() for at in FOLDERS)] == []


def test_the_page_is_short() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES
