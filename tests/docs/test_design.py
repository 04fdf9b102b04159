"""Chapters of the design: at most twelve, a number in one of them, links that lead somewhere."""

import re
from collections import Counter
from pathlib import Path

import pytest

from launcher.paths import CHECKOUT

DESIGN = CHECKOUT / "docs" / "design"
CHAPTERS = sorted(set(DESIGN.glob("*.md")) - {DESIGN / "README.md"})
INDEX = (DESIGN / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s#]+\.md)(?:#[^()\s]*)?\)")
MOST_CHAPTERS = 12
MOST_WORDS = 120


def numbers(chapter: str) -> list[int]:
    """Return the numbers that the index gives to a chapter."""
    row = re.search(rf"^\| {re.escape(chapter)} \| ([\d, ]+) \|$", INDEX, re.MULTILINE)
    return [int(number) for number in row[1].split(", ")] if row else []


def rows(text: str) -> list[tuple[int, str]]:
    return [(int(number), cells) for number, cells in ROW.findall(text)]


def test_there_are_few_chapters() -> None:
    assert 0 < len(CHAPTERS) <= MOST_CHAPTERS


def test_the_index_of_all_documents_names_the_design() -> None:
    assert "(design/README.md)" in (CHECKOUT / "docs" / "README.md").read_text(encoding="utf-8")


def test_a_number_is_in_one_chapter() -> None:
    found = Counter(
        number for chapter in CHAPTERS for number, _ in rows(chapter.read_text(encoding="utf-8"))
    )
    assert [number for number, times in found.items() if times > 1] == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_the_index_names_a_chapter_and_its_numbers(chapter: Path) -> None:
    assert f"| [{chapter.stem}]({chapter.name}) |" in INDEX
    own = [number for number, _ in rows(chapter.read_text(encoding="utf-8"))]
    assert sorted(own) == numbers(chapter.stem)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_row_is_short(chapter: Path) -> None:
    long = [
        number
        for number, cells in rows(chapter.read_text(encoding="utf-8"))
        if len(cells.split()) > MOST_WORDS
    ]
    assert long == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_links_of_a_chapter_lead_to_a_page(chapter: Path) -> None:
    links = LINK.findall(chapter.read_text(encoding="utf-8"))
    assert [link for link in links if not (chapter.parent / link).is_file()] == []


def test_citations_name_the_chapter_that_has_the_number() -> None:
    cited = re.compile(r"design: ([a-z-]+),\s+(\d+)\b")
    pages = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")]
    wrong = [
        f"{page.name}: {chapter}, {number}"
        for page in pages
        for chapter, number in cited.findall(page.read_text(encoding="utf-8"))
        if int(number) not in numbers(chapter)
    ]
    assert wrong == []


def test_chapters_are_all_there_and_nothing_names_pages_of_single_decisions() -> None:
    assert not (CHECKOUT / "docs" / "decisions").exists()
    named = re.findall(r"^\| \[[a-z-]+\]\(([a-z-]+\.md)\) \|", INDEX, re.MULTILINE)
    assert sorted(named) == [chapter.name for chapter in CHAPTERS]
    pages = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")]
    dead = [
        f"{page.name}: {link}"
        for page in pages
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).is_file()
    ]
    assert dead == []
