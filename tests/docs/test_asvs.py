"""What docs/asvs.md says is where it says."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBERED = {
    number: [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for number, line in enumerate((ROOT / "docs/asvs.md").read_text("utf-8").splitlines(), 1)
    if re.match(r"\| \d", line)
}
ROWS = NUMBERED.values()


def test_each_requirement_names_what_there_is() -> None:
    wrong = [
        f"docs/asvs.md:{number}: {fault}"
        for number, row in NUMBERED.items()
        for fault in faults(row)
    ]
    assert not wrong, "\n".join(wrong)


def faults(row: list[str]) -> Iterator[str]:
    requirement, state, where, test = [*row, "", "", ""][:4]
    if not re.match(r"\d+\.\d+\.\d+(, \d+\.\d+\.\d+)* \S", requirement):
        yield f"{requirement!r} is not numbers and words"
    if state not in {"met", "part", "open", "none"}:
        yield f"{state!r} is no state"
    if state != "open" and not (where or test or requirement.startswith(("6.2.10", "6.4.2"))):
        yield f"{state!r} tells neither where nor a test"
    for name in re.findall(r"`([a-z_]+/[\w/.-]+)`", f"{where} {test}"):
        if not (ROOT / name).exists():
            yield f"{name} is not there"
    for name in re.findall(r"`(tests/[^`]+)`", where):
        yield f"{name} stands in the wrong column"


def test_requirements_stand_once_and_in_order() -> None:
    numbers = [
        tuple(map(int, number.split(".")))
        for row in ROWS
        for number in re.findall(r"\d+\.\d+\.\d+", row[0])
    ]
    assert len(set(numbers)) == len(numbers) > 60
    firsts = [tuple(map(int, row[0].split(",")[0].split(" ")[0].split("."))) for row in ROWS]
    assert firsts == sorted(firsts)


def test_all_chapters_are_there() -> None:
    chapters = {int(row[0].split(".")[0]) for row in ROWS}
    assert chapters == set(range(1, 18))


def test_nothing_of_webrtc_is_there() -> None:
    """Chapter 17 has nothing to be about as long as no page and no process has anything of it."""
    words = re.compile(r"RTCPeerConnection|RTCDataChannel|aiortc|\bDTLS\b|\bTURN\b.*server", re.I)
    sources = [
        path
        for folder in ("api", "cli", "ingest", "launcher", "mqlake", "rules", "streaming")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".js", ".java"} and "vendor" not in path.parts
    ]
    found = [path for path in sources if words.search(path.read_text(encoding="utf-8"))]
    assert len(sources) > 500
    assert not found
    locked = (ROOT / "conf/requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"^(aiortc|pylibsrtp|aioice)", locked, re.M)
