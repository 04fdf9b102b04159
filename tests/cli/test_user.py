from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.app import mqlake
from mqlake.errors import MqlakeError
from mqlake.security.argon2_verifiers import Argon2Verifier, CheckWork
from mqlake.security.credentials import read_credentials


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials"


def run(*arguments: str | Path, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(mqlake, ["user", *map(str, arguments)], input=stdin)


def test_password_comes_from_standard_input(path: Path) -> None:
    added = run("add", "alice", "--file", path, stdin="open sesame\n")
    assert (added.exit_code, added.stdout, added.stderr) == (0, "", "user alice added\n")
    verifier = read_credentials(path).scram_verifier_of("alice")
    assert verifier.accepts(b"open sesame")
    assert verifier.iterations == 15_000


def test_password_is_changed_and_the_work_chosen(path: Path) -> None:
    run("add", "alice", "--file", path, stdin="one")
    changed = run("add", "alice", "--file", path, "--iterations", "4096", stdin="two\r\n")
    assert changed.stderr == "user alice changed\n"
    verifier = read_credentials(path).scram_verifier_of("alice")
    assert verifier.accepts(b"two")
    assert verifier.iterations == 4096


def test_password_is_kept_by_argon2id(path: Path) -> None:
    argon2id = ("--argon2id", "--memory-kib", "8192", "--passes", "1")
    run("add", "alice", "--file", path, *argon2id, stdin="one")
    verifier = read_credentials(path).verifier_of("alice")
    assert isinstance(verifier, Argon2Verifier)
    assert verifier.work == CheckWork(8192, 1, 1)
    assert verifier.accepts(b"one")
    run("add", "bob", "--file", path, "--argon2id", stdin="two")
    assert "bob:$argon2id$v=19$m=19456,t=2,p=1$" in path.read_text()


def test_users_are_listed_and_removed(path: Path) -> None:
    for name in ("alice", "bob"):
        run("add", name, "--file", path, stdin="x")
    assert run("list", "--file", path).stdout == "alice\nbob\n"
    assert run("remove", "alice", "--file", path).exit_code == 0
    assert run("list", "--file", path).stdout == "bob\n"


def test_password_cannot_be_an_argument(path: Path) -> None:
    refused = run("add", "alice", "open sesame", "--file", path)
    assert refused.exit_code == 2
    assert not path.exists()


@pytest.mark.parametrize(
    ("stdin", "reason"),
    [
        (b"", "the password is empty"),
        (b"\n", "the password is empty"),
        (b"a\tb\n", "the password holds a control character"),
        (b"\xff\n", "not UTF-8"),
    ],
)
def test_password_that_cannot_be_one_is_refused(path: Path, stdin: bytes, reason: str) -> None:
    refused = run("add", "alice", "--file", path, stdin=stdin)
    assert isinstance(refused.exception, MqlakeError)
    assert reason in str(refused.exception)
    assert not path.exists()


def test_unknown_user_is_not_removed(path: Path) -> None:
    run("add", "alice", "--file", path, stdin="x")
    refused = run("remove", "bob", "--file", path)
    assert isinstance(refused.exception, MqlakeError)
    assert str(refused.exception) == f"no user 'bob' in {path}"
