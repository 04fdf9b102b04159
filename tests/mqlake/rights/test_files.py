from pathlib import Path

import pytest

from mqlake.rights.files import RightsError, read_rights

GOOD = """
[[rules]]
effect = "allow"
actions = ["publish"]
topics = ["a"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "rights.toml"
    made.write_text(GOOD)
    made.chmod(0o644)
    return made


def test_a_file_is_read(path: Path) -> None:
    rights = read_rights(path)
    assert rights.rules == 1
    assert rights.of("c1", None).may_publish("a", 0, False)


def test_user_names_are_compared_as_a_login_has_them(path: Path) -> None:
    path.write_text(GOOD + 'users = ["\u00adann"]\n')
    assert read_rights(path).of("c1", "ann").may_publish("a", 0, False)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(RightsError, match=f"others may write .* \\(mode {mode:04o}\\): run chmod"):
        read_rights(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RightsError, match=r"rights file .*none.toml: No such file"):
        read_rights(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\xff", "is not UTF-8 text"),
        (b"rules = [", "Invalid"),
        (b"", "rules: Field required"),
        (b"rulez = []\nrules = []", "rulez: Extra inputs are not permitted"),
        (b"rules = [{}]", "rule 1: effect: Field required"),
        (GOOD.replace("allow", "permit").encode(), "rule 1: effect: Input should be 'allow'"),
        (GOOD.replace("publish", "write").encode(), "rule 1: actions.0: Input should be"),
        (GOOD.replace('"publish"', "").encode(), "rule 1: actions: Tuple should have at least 1"),
        (GOOD.replace('topics = ["a"]', "").encode(), "rule 1: topics is missing"),
        (GOOD.replace('"a"', "").encode(), "rule 1: topics is missing"),
        (GOOD.replace('"a"', '"a+"').encode(), "rule 1: topics.0: 'a\\+': '\\+' shares its level"),
        (GOOD.replace('"a"', '"%x"').encode(), "rule 1: topics.0: '%x' has '%x', expected %c, %u"),
        (GOOD.replace('"a"', '"$share/g/a"').encode(), "name the topic filter without"),
        ((GOOD + GOOD + "qos = [3]").encode(), "rule 2: qos.0: Input should be 0, 1 or 2"),
        ((GOOD + "users = []").encode(), "rule 1: users: Tuple should have at least 1"),
        ((GOOD + 'users = ["a\\u0000"]').encode(), "rule 1: users.0:"),
        ((GOOD + 'users = [""]').encode(), "rule 1: users.0:"),
        ((GOOD + 'roles = ["r"]').encode(), "rule 1 is for the role 'r', which .roles. lacks"),
        ((GOOD + 'client_ids = [""]').encode(), "rule 1: client_ids.0: an empty client"),
        ((GOOD + 'client_ids = ["%c"]').encode(), "rule 1: client_ids.0: '%c' has '%c'"),
        ((GOOD + "topic = 1").encode(), "rule 1: topic: Extra inputs"),
        (GOOD.replace('"publish"', '"connect"').encode(), "rule 1: connect has no topics"),
        (
            b'rules = [{ effect = "allow", actions = ["connect", "publish"], topics = ["a"] }]',
            "rule 1: connect has no topics and stands alone",
        ),
        ((GOOD.replace("publish", "receive") + "qos = [1]").encode(), "rule 1: qos is for publish"),
        (
            (GOOD.replace("publish", "subscribe") + "retain = true").encode(),
            "rule 1: retain is for publish alone",
        ),
        (b'rules = []\n[roles]\n"a b" = ["x"]', "roles"),
    ],
)
def test_what_is_wrong_is_said(path: Path, text: bytes, problem: str) -> None:
    path.write_bytes(text)
    with pytest.raises(RightsError, match=problem) as refused:
        read_rights(path)
    assert str(refused.value).startswith(f"rights file {path}")
