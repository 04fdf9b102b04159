"""Mistakes that newcomers make: each answer in `docs/mistakes.md` is the one that they get."""

import fcntl
import re
import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.app import main
from launcher.ports import free_ports
from tests.api.conftest import Api, api
from tests.mqlake.test_api_client import served

__all__ = ["api", "served"]  # fixtures of others

DOCUMENT = Path(__file__).parents[2] / "docs" / "mistakes.md"
PORTS = ("--mqtt-port", "--websocket-port", "--api-port")
BLOCK = re.compile(r"^## (.+?)\n.*?```console\n\$ (.+?)\n(.*?)```", re.MULTILINE | re.DOTALL)


@dataclass
class Newcomer:
    """Types commands in a folder of its own; nothing that it does starts a system."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    request: pytest.FixtureRequest
    typed: tuple[str, ...] = ()

    @property
    def system(self) -> Api:
        """The API of a system that runs."""
        found: Api = self.request.getfixturevalue("served")
        return found

    def types(self, *words: str) -> str:
        """Run a command that fails; return what it prints.

        A system has ports that are free here, but those that are named.
        """
        if words[0] == "up":
            missing = [option for option in PORTS if option not in words]
            for option, port in zip(missing, free_ports(len(missing)), strict=True):
                words += option, str(port)
        self.typed = words
        self.monkeypatch.setattr(sys, "argv", ["mqlake", *words])
        with pytest.raises(SystemExit) as ended:  # as `cli.__main__` ends
            sys.exit(main())
        assert ended.value.code in (1, 2), words
        printed = self.capsys.readouterr()
        assert printed.out == ""
        return printed.err

    def asks(self, command: str, *words: str) -> str:
        """Run a command of the system that runs."""
        group, *rest = command.split()
        return self.types(group, *rest, "--data-dir", str(self.system.data_dir), *words)

    def sets(self, process: str, text: str) -> str:
        """Start a system with a settings file; return what is said."""
        conf = self.folder / "conf"
        conf.mkdir()
        (conf / f"{process}.toml").write_text(text, encoding="utf-8")
        return self.types("up", "--config-dir", "conf").replace(str(self.folder), "/home/ann")

    def finds(self, name: str, value: str) -> str:
        """Start a system with a variable in the environment; return what is said."""
        self.monkeypatch.setenv(name, value)
        return self.types("up")


@pytest.fixture
def newcomer(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Newcomer:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.chdir(folder)
    for name in ("MIN_AVAILABLE_MEMORY_MB", "MIN_FREE_DISK_MB"):
        monkeypatch.setenv(f"MQLAKE_LOCAL_{name}", "0")  # the machine has other work

    def start(*_: object) -> None:
        raise AssertionError("the system would have started")

    monkeypatch.setattr("launcher.launch._supervise", start)
    monkeypatch.setattr("launcher.launch._prepare_log", start)
    monkeypatch.setattr("os.umask", lambda mask: mask)
    return Newcomer(folder, monkeypatch, capsys, request)


def port_in_use(newcomer: Newcomer) -> str:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        answer = newcomer.types("up", "--mqtt-port", str(port))
    return answer.replace(str(port), "1883")


def port_twice(newcomer: Newcomer) -> str:
    (port,) = free_ports(1)
    answer = newcomer.types("up", "--mqtt-port", str(port), "--api-port", str(port))
    return answer.replace(str(port), "8080")


def running_already(newcomer: Newcomer) -> str:
    root = newcomer.system.data_dir
    with (root / "lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        answer = newcomer.types("up", "--data-dir", str(root))
    return re.sub(r"(http://127\.0\.0\.1):\d+", r"\1:8080", answer).replace(str(root), "data")


def foreign_files(newcomer: Newcomer) -> str:
    (newcomer.folder / "letter.txt").touch()
    return newcomer.types("up", "--data-dir", ".").replace(str(newcomer.folder), "/home/ann")


def a_file(newcomer: Newcomer) -> str:
    (newcomer.folder / "data").touch()
    return newcomer.types("up").replace(str(newcomer.folder), "/home/ann")


def old_java(newcomer: Newcomer) -> str:
    home = newcomer.folder / "java-11"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="11.0.22"\n')
    return newcomer.finds("JAVA_HOME", str(home)).replace(str(home), "/usr/lib/jvm/java-11")


def wrong_token(newcomer: Newcomer) -> str:
    (newcomer.system.data_dir / "api-token").write_text("wrong")
    return newcomer.asks("clients")


def broken_file(newcomer: Newcomer) -> str:
    (newcomer.folder / "hot.yaml").write_text("id: hot\nsql: [\n")
    return newcomer.asks("rules apply", "hot.yaml")


CASES: dict[str, Callable[[Newcomer], str]] = {
    "The port is taken": port_in_use,
    "Two parts want one port": port_twice,
    "The system runs already": running_already,
    "The data directory is another folder": foreign_files,
    "The data directory is a file": a_file,
    "No system runs there": lambda one: one.types("status"),
    "A command is misspelt": lambda one: one.types("stauts"),
    "An option is misspelt": lambda one: one.types("status", "--datadir", "x"),
    "A setting is misspelt": lambda one: one.sets("gateway", "max_conections = 10\n"),
    "A setting is out of range": lambda one: one.sets("api", "port = 70000\n"),
    "A settings file is no TOML": lambda one: one.sets("local", "log_heap_mb 512\n"),
    "A variable has a wrong value": lambda one: one.finds("MQLAKE_GATEWAY_PORT", "mqtt"),
    "Everybody could come in": lambda one: one.finds("MQLAKE_GATEWAY_HOST", "0.0.0.0"),
    "Java is too old": old_java,
    "The certificate is not there": lambda one: one.sets(
        "api",
        'certificate = "api.pem"\nkey = "api.key"\n',
    ),
    "The token is wrong": wrong_token,
    "A message is published to a filter": lambda one: one.asks("publish", "plant/+/t", "21"),
    "A topic filter is none": lambda one: one.asks("tail", "plant/#/t"),
    "A table is misspelt": lambda one: one.asks("sql", "SELECT * FROM mesages"),
    "A query is no SELECT": lambda one: one.asks("sql", "DELETE FROM messages"),
    "A rule is misspelt": lambda one: one.asks("rules test", "SELECT * FORM 'plant/#'"),
    "A function is misspelt": lambda one: one.asks(
        "rules test", "SELECT uper(topic) AS t FROM 'plant/#'"
    ),
    "A file of rules is no YAML": broken_file,
    "A rule is not applied yet": lambda one: one.asks("rules dry-run", "demo-heat"),
}


def documented() -> dict[str, tuple[str, str]]:
    """Return command and answer of each mistake in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return {title: (command, answer) for title, command, answer in BLOCK.findall(text)}


def test_document_has_every_mistake() -> None:
    assert list(documented()) == list(CASES)


@pytest.mark.parametrize("mistake", CASES)
def test_answer_is_the_documented_one(newcomer: Newcomer, mistake: str) -> None:
    command, answer = documented()[mistake]
    assert " ".join(CASES[mistake](newcomer).split()) == " ".join(answer.split())
    program = command.index("bin/mqlake")
    words = {word for word in shlex.split(command[program:])[1:] if not word.isdecimal()}
    assert words <= set(newcomer.typed)
