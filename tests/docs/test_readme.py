"""What README shows is what there is."""

import re
from pathlib import Path

import click
import pytest

from cli.app import mqlake

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def commands(text: str) -> list[list[str]]:
    """Return the words of every `bin/mqlake` line in the shell blocks of a document."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in lines if line.startswith("bin/mqlake")]
    return [line.partition("  # ")[0].split()[1:] for line in lines]


def group() -> click.Group:
    assert isinstance(mqlake, click.Group)
    return mqlake


@pytest.mark.parametrize("document", sorted(set(DOCUMENTS)), ids=lambda path: path.name)
def test_every_command_and_option_that_a_document_shows_exists(document: Path) -> None:
    context = click.Context(group())
    for name, *words in commands(document.read_text(encoding="utf-8")):
        command = group().get_command(context, name)
        assert command is not None, f"{document.name}: bin/mqlake {name}"
        if isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words[0]]
        options = {option for parameter in command.params for option in parameter.opts}
        for word in words:
            if word.startswith("--"):
                assert word in options, f"{document.name}: bin/mqlake {name} {word}"
            elif word.startswith("conf/"):
                assert (ROOT / word).exists(), f"{document.name}: bin/mqlake {name} {word}"


def test_the_page_of_commands_lists_every_command_of_a_user() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    # Started by `up`, or by hand in a cluster.
    processes = {"gateway", "router", "lake", "query", "rules-runner", "api"}
    for name in set(group().list_commands(click.Context(group()))) - processes:
        assert f"bin/mqlake {name}" in text


@pytest.mark.parametrize("document", sorted(set(DOCUMENTS)), ids=lambda path: path.name)
def test_every_file_that_a_document_links_to_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"


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
