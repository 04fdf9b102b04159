import base64
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramMechanism

from mqlake.security.argon2_verifiers import Argon2Verifier, CheckWork, make_argon2_verifier
from mqlake.security.credentials import (
    CredentialsError,
    Verifier,
    make_verifier,
    read_credentials,
    remove_user,
    set_user,
)
from mqlake.security.saslprep import UnpreparableText

RFC_7677_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CHEAP = 4096
SALT, HASH = "c29tZXNhbHRvZnRlc3Rz$"[:20] + "$", "A" * 43


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials"


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def test_verifier_is_what_another_implementation_makes() -> None:
    ours = make_verifier("pencil", iterations=4096, salt=RFC_7677_SALT)
    salt, stored_key, server_key, iterations = ScramMechanism("SCRAM-SHA-256").make_auth_info(
        "pencil", iteration_count=4096, salt=RFC_7677_SALT
    )
    assert ours == Verifier(salt, iterations, stored_key, server_key)


def test_verifier_accepts_its_password_alone() -> None:
    verifier = make_verifier("pencil", iterations=CHEAP)
    assert verifier.accepts(b"pencil")
    assert not verifier.accepts(b"Pencil")
    assert not verifier.accepts(b"")


def test_two_verifiers_of_a_password_have_nothing_in_common() -> None:
    one, other = make_verifier("pencil"), make_verifier("pencil")
    assert one.salt != other.salt
    assert one.stored_key != other.stored_key


def test_repr_shows_no_key() -> None:
    verifier = make_verifier("pencil", iterations=CHEAP)
    assert repr(verifier) == "Verifier(iterations=4096)"


def test_users_are_added_changed_and_removed(path: Path) -> None:
    first, second = make_verifier("a", iterations=CHEAP), make_verifier("b", iterations=CHEAP)
    assert set_user(path, "alice", first)
    assert set_user(path, "bob", first)
    assert not set_user(path, "alice", second)
    credentials = read_credentials(path)
    assert list(credentials) == ["alice", "bob"]
    assert credentials.verifier_of("alice") == second
    assert credentials.verifier_of("bob") == first
    remove_user(path, "alice")
    assert list(read_credentials(path)) == ["bob"]


def test_file_is_its_owners_alone_and_holds_no_password(path: Path) -> None:
    set_user(path, "alice", make_verifier("open sesame", iterations=CHEAP))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"open sesame" not in path.read_bytes()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", ["tenant:device", "a:SCRAM-SHA-256$4096:b", "o'neil", "\u00e9", "x y"]
)
def test_name_may_hold_what_separates(path: Path, name: str) -> None:
    verifier = make_verifier("a", iterations=CHEAP)
    set_user(path, name, verifier)
    assert read_credentials(path).verifier_of(name) == verifier
    remove_user(path, name)
    assert list(read_credentials(path)) == []


def test_one_user_has_one_name_however_it_is_composed(path: Path) -> None:
    verifier = make_verifier("a", iterations=CHEAP)
    set_user(path, "Rene\u0301", verifier)
    assert not set_user(path, "Ren\u00e9", verifier)
    assert list(read_credentials(path)) == ["Ren\u00e9"]


def test_comments_stay_when_users_change(path: Path) -> None:
    set_user(path, "alice", make_verifier("a", iterations=CHEAP))
    entry = next(line for line in path.read_text().splitlines() if line.startswith("alice"))
    write(path, f"# people\n\n{entry}\n# machines\r\n")
    set_user(path, "bob", make_verifier("a", iterations=CHEAP))
    lines = path.read_text().split("\n")
    assert lines[:4] == ["# people", "", entry, "# machines"]
    assert lines[4].startswith("bob:SCRAM-SHA-256$4096:")
    assert lines[5:] == [""]


def test_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    set_user(path, "alice", make_verifier("a", iterations=CHEAP))
    link = tmp_path / "link"
    link.symlink_to(path)
    set_user(link, "bob", make_verifier("a", iterations=CHEAP))
    assert link.is_symlink()
    assert list(read_credentials(path)) == ["alice", "bob"]


def test_users_added_at_once_are_all_there(path: Path) -> None:
    verifier = make_verifier("a", iterations=CHEAP)
    names = [f"user-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: set_user(path, name, verifier), names))
    assert sorted(read_credentials(path)) == sorted(names)


def test_unknown_user_looks_the_same_every_time_and_fits_nothing(path: Path) -> None:
    verifier = make_verifier("a", iterations=5000)
    for name in ("alice", "bob"):
        set_user(path, name, verifier)
    set_user(path, "carol", make_verifier("a", iterations=9000))
    once, again = (read_credentials(path).scram_verifier_of("mallory") for _ in range(2))
    assert once.salt == again.salt
    assert len(once.salt) == len(verifier.salt)
    assert once.iterations == 5000
    assert once.salt != read_credentials(path).scram_verifier_of("trent").salt
    assert once.stored_key != again.stored_key


BAD_LINES = {
    "alice": "expected <name>:SCRAM-SHA-256",
    "alice:password": "expected <name>:SCRAM-SHA-256",
    "alice:SCRAM-SHA-256$4096:YQ==$YQ==:YQ==": "the stored key has 1 bytes, expected 32",
    "alice:SCRAM-SHA-256$4096:YQ$YQ==:YQ==": "the salt is not base64",
    f"alice:SCRAM-SHA-256$4096:YQ==${'A' * 43}=:YQ==": "the server key has 1 bytes, expected 32",
    f"alice:SCRAM-SHA-256$1000:YQ==${'A' * 43}=:{'A' * 43}=": "1000 iterations, expected 4096",
    f"alice:SCRAM-SHA-256$99999999:YQ==${'A' * 43}=:{'A' * 43}=": "99999999 iterations",
    f"\u2168:SCRAM-SHA-256$4096:YQ==${'A' * 43}=:{'A' * 43}=": "not in the form that SASLprep",
    f"a\tb:SCRAM-SHA-256$4096:YQ==${'A' * 43}=:{'A' * 43}=": "the user name holds a control",
    "unknown-users:YQ==": "the secret has 1 bytes, expected 32",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items())
def test_bad_line_is_named_by_its_number_and_not_shown(path: Path, line: str, reason: str) -> None:
    write(path, f"# users\n{line}\n")
    with pytest.raises(CredentialsError) as error:
        read_credentials(path)
    assert str(error.value).startswith(f"credentials file {path}, line 2: ")
    assert reason in str(error.value)
    assert "YQ==" not in str(error.value)


def test_user_twice_is_refused(path: Path) -> None:
    verifier = make_verifier("a", iterations=CHEAP)
    write(path, f"alice:{verifier}\nalice:{verifier}\n")
    with pytest.raises(CredentialsError, match="line 2: the user is in the file already"):
        read_credentials(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_file_open_to_others_is_refused(path: Path, mode: int) -> None:
    write(path, "", mode)
    with pytest.raises(
        CredentialsError, match=rf"open to others \(mode {mode:04o}\): run chmod 600"
    ):
        read_credentials(path)


def test_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(CredentialsError, match=f"^credentials file {path}: No such file"):
        read_credentials(path)
    path.write_bytes(b"\xff\n")
    path.chmod(0o600)
    with pytest.raises(CredentialsError, match="is not UTF-8 text"):
        read_credentials(path)


def test_nothing_is_made_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="No such file or directory"):
        set_user(tmp_path / "no" / "file", "alice", make_verifier("a", iterations=CHEAP))


def test_removing_somebody_unknown_is_refused(path: Path) -> None:
    with pytest.raises(CredentialsError, match="No such file"):
        remove_user(path, "alice")
    set_user(path, "alice", make_verifier("a", iterations=CHEAP))
    before = os.stat(path)
    with pytest.raises(CredentialsError, match="no user 'bob'"):
        remove_user(path, "bob")
    assert os.stat(path).st_ino == before.st_ino


def test_name_that_a_line_cannot_hold_is_refused(path: Path) -> None:
    verifier = make_verifier("a", iterations=CHEAP)
    with pytest.raises(CredentialsError, match="cannot begin with #"):
        set_user(path, "#alice", verifier)
    with pytest.raises(UnpreparableText, match="the user name is empty"):
        set_user(path, "", verifier)


# Argon2id


WORK = CheckWork(7 * 1024, 1, 1)


def test_argon2_verifier_is_what_another_implementation_reads(path: Path) -> None:
    verifier = make_argon2_verifier("open sesame", WORK)
    assert PasswordHasher().verify(str(verifier), "open sesame")
    theirs = PasswordHasher(time_cost=2, memory_cost=8192, parallelism=2).hash("open sesame")
    write(path, f"alice:{theirs}\nbob:{verifier}\n")
    found = read_credentials(path)
    for name in ("alice", "bob"):
        assert found.verifier_of(name).accepts(b"open sesame")
        assert not found.verifier_of(name).accepts(b"open sesam")
        assert not found.verifier_of(name).accepts(b"")
    assert str(found.verifier_of("alice")) == theirs


def test_argon2_verifier_shows_nothing() -> None:
    verifier = make_argon2_verifier("pencil", WORK)
    assert repr(verifier) == "Argon2Verifier(work=CheckWork(memory_kib=7168, passes=1, lanes=1))"
    assert verifier != make_argon2_verifier("pencil", WORK)


def test_user_with_argon2_has_no_scram_and_looks_unknown(path: Path) -> None:
    set_user(path, "alice", make_verifier("pencil", iterations=CHEAP))
    set_user(path, "bob", make_argon2_verifier("pencil", WORK))
    found = read_credentials(path)
    assert list(found) == ["alice", "bob"]
    assert found.scram_verifier_of("alice") == found.verifier_of("alice")
    bob, nobody = found.scram_verifier_of("bob"), found.scram_verifier_of("nobody")
    assert bob.iterations == nobody.iterations == CHEAP
    assert not bob.accepts(b"pencil")
    assert found.scram_verifier_of("bob").salt == bob.salt


def test_unknown_user_costs_what_most_users_cost(path: Path) -> None:
    set_user(path, "alice", make_verifier("pencil", iterations=CHEAP))
    for name in ("bob", "carol"):
        set_user(path, name, make_argon2_verifier("pencil", WORK))
    unknown = read_credentials(path).verifier_of("nobody")
    assert isinstance(unknown, Argon2Verifier)
    assert unknown.work == WORK
    assert not unknown.accepts(b"pencil")


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ("$argon2id$v=19$m=1024,t=3,p=1$" + SALT + HASH, "m=1024 KiB, expected 7168 to 131072"),
        ("$argon2id$v=19$m=9999999,t=3,p=1$" + SALT + HASH, "m=9999999 KiB, expected"),
        ("$argon2id$v=19$m=8192,t=0,p=1$" + SALT + HASH, "t=0 and p=1, expected 1 to 20 and"),
        ("$argon2id$v=19$m=8192,t=21,p=1$" + SALT + HASH, "t=21 and p=1"),
        ("$argon2id$v=19$m=8192,t=3,p=17$" + SALT + HASH, "t=3 and p=17"),
        ("$argon2id$v=19$m=8192,t=3,p=1$" + "A" * 25 + "$" + HASH, "salt or hash is not base64"),
        ("$argon2i$v=19$m=8192,t=3,p=1$" + SALT + HASH, "expected <name>:SCRAM-SHA-256"),
        ("$argon2id$v=16$m=8192,t=3,p=1$" + SALT + HASH, "expected <name>:SCRAM-SHA-256"),
        ("$argon2id$v=19$m=8192,t=3,p=1$" + SALT, "expected <name>:SCRAM-SHA-256"),
    ],
)
def test_argon2_verifiers_that_are_none(path: Path, verifier: str, reason: str) -> None:
    write(path, f"alice:{verifier}\n")
    with pytest.raises(CredentialsError, match=re.escape(reason)) as failure:
        read_credentials(path)
    assert "line 1" in str(failure.value)
    assert HASH[1:] not in str(failure.value)


@given(st.text(max_size=60))
def test_no_text_makes_reading_fail_otherwise(text: str) -> None:
    for line in (text, f"a:$argon2id${text}", f"a:$argon2id$v=19$m=8192,t=1,p=1${text}"):
        with NamedTemporaryFile() as file, suppress(CredentialsError):
            file.write(line.encode())
            file.flush()
            read_credentials(Path(file.name))
