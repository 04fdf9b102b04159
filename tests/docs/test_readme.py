"""What README shows is what there is."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from cli.app import mqlake

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def place(document: Path, text: str, start: int) -> str:
    """Return where in a document something stands, as file:line."""
    number = text.count("\n", 0, start) + 1
    return f"{document.relative_to(ROOT)}:{number}"


def commands(document: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield place and words of every `bin/mqlake` line in the shell blocks of a document."""
    text = document.read_text(encoding="utf-8")
    for block in re.finditer(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in re.finditer(r"^bin/mqlake.*", block[1], re.MULTILINE):
            words = line[0].partition("  # ")[0].split()[1:]
            yield place(document, text, block.start(1) + line.start()), words


def group() -> click.Group:
    assert isinstance(mqlake, click.Group)
    return mqlake


def test_every_command_and_option_that_a_document_shows_exists() -> None:
    wrong = [
        f"{where}: bin/mqlake {' '.join(words)}: {word}"
        for document in DOCUMENTS
        for where, words in commands(document)
        for word in unknown(words)
    ]
    assert not wrong, "\n".join(wrong)


def unknown(words: list[str]) -> list[str]:
    """Return the words that name no command, no option or no file."""
    name, *rest = words or [""]
    command = group().get_command(click.Context(group()), name)
    if command is None:
        return [name]
    if isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest[0]]
    options = {option for parameter in command.params for option in parameter.opts}
    return [
        word
        for word in rest
        if (word.startswith("--") and word not in options)
        or (word.startswith("conf/") and not (ROOT / word).exists())
    ]


def test_the_page_of_commands_lists_every_command_of_a_user() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    # Started by `up`, or by hand in a cluster.
    processes = {"gateway", "router", "lake", "query", "rules-runner", "api"}
    for name in set(group().list_commands(click.Context(group()))) - processes:
        assert f"bin/mqlake {name}" in text


def test_every_file_that_a_document_links_to_exists() -> None:
    broken = [one for document in DOCUMENTS for one in broken_links(document)]
    assert not broken, "\n".join(broken)


def broken_links(document: Path) -> Iterator[str]:
    text = document.read_text(encoding="utf-8")
    for link in re.finditer(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in link[1] and not (document.parent / link[1]).exists():
            yield f"{place(document, text, link.start())}: {link[1]}"


def test_changelog_names_the_version_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert version is not None
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_index_lists_every_page() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([\w-]+\.md)", index))
    assert listed == {page.name for page in docs.glob("*.md")} - {"README.md"}
