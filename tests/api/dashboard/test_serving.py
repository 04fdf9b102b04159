"""How the dashboard's files are served, and what they must not do."""

import gzip
import hashlib
import re
from pathlib import Path, PurePosixPath

import pytest

from api.dashboard import serving
from tests.api.conftest import Api

STATIC = Path(serving.__file__).parent / "static"
OURS = sorted(
    path for path in STATIC.rglob("*.js") if "vendor" not in path.relative_to(STATIC).parts
)
_REFERENCE = re.compile(r"""(?:src|href)="([^"#]+)"|(?:from|import)\s*\(?\s*"(\.[^"]+)\"""")


def test_pages_are_served_to_everybody(api: Api) -> None:
    answer = api.client.get("/dashboard/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-frame-options"] == "DENY"
    for path in ("/", "/dashboard"):
        moved = api.client.get(path)
        assert (moved.status_code, moved.headers["location"]) == (307, "/dashboard/")


def test_policy_lets_run_what_is_served_here_alone(api: Api) -> None:
    policy = api.client.get("/dashboard/").headers["content-security-policy"]
    rules = dict(part.split(" ", 1) for part in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert rules[name] == "'self'"
    assert "unsafe" not in policy


def test_policy_names_where_gateways_take_websockets(api: Api) -> None:
    api.hear("gateway-1", listeners=["mqtt://127.0.0.1:1883", "ws://127.0.0.1:8083/mqtt"])
    api.hear("gateway-2", listeners=["wss://*:8084/mqtt", "ws://[::1]:8083/mqtt", "unix:///a"])
    headers = {"Host": "lake.example.org:8080"}
    policy = api.client.get("/dashboard/", headers).headers["content-security-policy"]
    expected = "connect-src 'self' ws://127.0.0.1:8083 wss://lake.example.org:8084;"
    assert expected in policy


def test_policy_takes_no_words_from_a_request(api: Api) -> None:
    api.hear("gateway-1", listeners=["ws://*:8083/mqtt"])
    headers = {"Host": "a; script-src *"}
    policy = api.client.get("/dashboard/", headers).headers["content-security-policy"]
    assert policy.count("script-src") == 1
    assert "*" not in policy


def test_a_browser_that_has_a_file_gets_no_second_one(api: Api) -> None:
    first = api.client.get("/dashboard/app.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = api.client.get("/dashboard/app.js", {"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_files_are_compressed_for_who_takes_that(api: Api) -> None:
    packed = api.client.get("/dashboard/app.js", {"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    plain = api.client.get("/dashboard/app.js", {"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text == (STATIC / "app.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["serving.py", "../serving.py", "%2e%2e/serving.py", "nothing.js"])
def test_nothing_else_is_served(api: Api, path: str) -> None:
    assert api.client.get(f"/dashboard/{path}").status_code == 404


def test_a_file_can_be_asked_about(api: Api) -> None:
    answer = api.client.request("HEAD", "/dashboard/app.js")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("path", [STATIC / "index.html", *OURS], ids=lambda path: path.name)
def test_every_file_that_is_named_is_there(path: Path) -> None:
    folder = PurePosixPath(path.relative_to(STATIC).as_posix()).parent
    for named in _REFERENCE.findall(path.read_text(encoding="utf-8")):
        name = named[0] or named[1]
        assert (STATIC / folder / name).resolve().is_relative_to(STATIC)
        assert (STATIC / folder / name).is_file(), name


def test_no_script_and_no_style_stands_in_the_page() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", text) == []
    assert "<style" not in text
    assert re.findall(r"\sstyle=|\son\w+=", text) == []


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_text_never_becomes_markup_or_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text


def test_what_is_not_ours_is_as_it_was_published() -> None:
    for note in STATIC.glob("vendor/*/VENDORED.txt"):
        listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", note.read_text(encoding="utf-8"), re.M)
        files = {path.name for path in note.parent.iterdir()} - {note.name}
        assert {name for _, name in listed} == files
        assert any("LICENSE" in name for name in files)
        for digest, name in listed:
            assert hashlib.sha256((note.parent / name).read_bytes()).hexdigest() == digest


def test_first_page_is_small() -> None:
    found = serving.files()
    index = found["index.html"].content.decode()
    needed = ["index.html", *(one[0] for one in _REFERENCE.findall(index) if one[0])]
    assert sum(len(found[name].compressed) for name in needed) < 40_000
    assert gzip.decompress(found["index.html"].compressed).decode() == index
