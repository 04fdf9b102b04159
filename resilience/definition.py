"""Targets as TOML: parts, how each is started, and their promises.

In a target's file stand `{dir}` for a folder of the run, `{disk}` and `{host}` for the disk and the
address of its machine (`{disk:NAME}`, `{host:NAME}` if there are several), `{port:NAME}` for a
free port of that name, `{user}`, `{python}`, and `{root}` for the folder that holds the package.
"""

import contextlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from resilience.errors import ScenarioError

FOLDER: Final = Path(__file__).parent / "targets"
ROOT: Final = Path(__file__).parent.parent

MACHINE: Final = "machine"
"""The only one, unless a target names others."""


@dataclass(frozen=True, slots=True)
class TargetPart:
    """One part of a target.

    Attributes:
        command: The tool starts it so; empty for a part of a system that starts as a whole.
        process: Its name in the answer of the system's `pids` command; such a part is started
            again by the system itself.
        port: Port at which clients connect: number or `{port:NAME}`; empty for a part without any.
        listens: Address at which it takes connections once it is up, host:port; the system
            starts then.
        machine: Parts with the same one share its address, its disk and its power.
        segments: Pattern of the files of its log, in folders of their own; in each folder the
            last one is being written.
        store: Pattern of files in which it keeps all that there is, each written again as a whole
            while it runs; it reads them when it starts.
        restarts: Whether it is started again when it ends by itself, as by a service manager.
        fill: Takes all the room that its log may have; `empty` gives it back.
        expire: Deletes what waits for the part while it is away, as happens in time.
        second: Starts a second process of its name, which has to fail and to print `refusal`.
    """

    command: tuple[str, ...] = ()
    process: str = ""
    port: str = ""
    listens: str = ""
    machine: str = MACHINE
    segments: str = ""
    store: str = ""
    restarts: bool = False
    fill: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    expire: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class SystemDefinition:
    """How a target is started and stopped as a whole.

    Attributes:
        pids: Prints JSON with `processes`, each with `name` and `pid`.
        keeper: The one of these that starts the parts again.
        audit: Holds the target's own records against its promises; its exit code is
            not 0 when one is broken.
        machine: Machine that it runs on, with all its parts.
    """

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    pids: tuple[str, ...] = ()
    keeper: str = ""
    audit: tuple[str, ...] = ()
    machine: str = MACHINE


@dataclass(frozen=True, slots=True)
class RightsDefinition:
    """How a target gets the rights of clients.

    Attributes:
        actions: Its words for `publish` and `subscribe`, in place of `{action}`.
        denied: Text in its document for each right that is taken away, with `{client_id}`,
            `{action}` and `{filter}`.
        others: Text that allows all the rest, after these.
        apply: Puts the document `{dir}/rights` in force, and ends when it is.
    """

    actions: Mapping[str, str] = field(default_factory=dict)
    denied: str = ""
    others: str = ""
    apply: tuple[str, ...] = ()

    def document(self, taken: Iterable[tuple[str, str, str]]) -> str:
        """Return the document that takes these rights away: client, action and filter of each."""
        rules = (
            self.denied.format(client_id=client, action=self.actions[action], filter=topics)
            for client, action, topics in taken
        )
        return "".join((*rules, self.others))


@dataclass(frozen=True, slots=True)
class TenantsDefinition:
    """How a target gets its tenants, and how a client names its own.

    Attributes:
        username: User name of a client, with `{tenant}` and `{client_id}`.
        tenant: Text in its document for each tenant, with `{tenant}` and `{state}`.
        is_open: The state of one whose clients are let in.
        is_shut: The state of one whose clients are cut off.
        apply: Puts the document `{dir}/tenants` in force, and ends when it is.
    """

    username: str = ""
    tenant: str = ""
    is_open: str = ""
    is_shut: str = ""
    apply: tuple[str, ...] = ()

    def document(self, states: Mapping[str, bool]) -> str:
        """Return the document of these tenants, each open or shut."""
        return "".join(
            self.tenant.format(tenant=name, state=self.is_open if is_open else self.is_shut)
            for name, is_open in states.items()
        )


@dataclass(frozen=True, slots=True)
class Definition:
    """A target as its file has it.

    Attributes:
        note: Source of the broker.
        disk_mebibytes: Size of the disk of each machine, in runs with a disk that can fail.
    """

    name: str
    title: str
    note: str
    promises: Mapping[str, Any]
    parts: Mapping[str, TargetPart]
    system: SystemDefinition = field(default_factory=SystemDefinition)
    rights: RightsDefinition = field(default_factory=RightsDefinition)
    tenants: TenantsDefinition = field(default_factory=TenantsDefinition)
    files: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: tuple[str, ...] = ()
    text: str = ""
    disk_mebibytes: int = 256

    @property
    def store(self) -> str:
        """The first part that says where its files are; empty if none does."""
        found = (name for name, part in self.parts.items() if part.segments or part.store)
        return next(found, "")

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of all machines, in the order of the parts: those that others need come first."""
        return tuple(dict.fromkeys(part.machine for part in self.parts.values()))


def names() -> list[str]:
    """Return the targets that come with the tool."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Definition:
    """Read a target by its name, or by a path to a file of one's own.

    Raises:
        ScenarioError: There is none, or it says something that is not known.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
        about = data.pop("target")
        parts = {
            part: TargetPart(**{key: _words(value) for key, value in values.items()})
            for part, values in data.pop("parts", {}).items()
        }
        system = SystemDefinition(
            **{key: _words(value) for key, value in data.pop("system", {}).items()},
        )
        rights = RightsDefinition(
            **{key: _words(value) for key, value in data.pop("rights", {}).items()}
        )
        tenants = TenantsDefinition(
            **{key: _words(value) for key, value in data.pop("tenants", {}).items()}
        )
        return Definition(
            name=path.stem,
            title=about.pop("title"),
            note=about.pop("note", ""),
            disk_mebibytes=about.pop("disk_mebibytes", 256),
            version=tuple(about.pop("version", ())),
            promises=data.pop("promises", {}),
            parts=parts,
            system=system,
            rights=rights,
            tenants=tenants,
            text=text,
            **data,
        )
    except FileNotFoundError:
        raise ScenarioError(f"no target {name!r}; there are {', '.join(names())}") from None
    except (tomllib.TOMLDecodeError, TypeError, ValueError, KeyError) as exc:
        raise ScenarioError(f"{path}: {exc!r}") from exc


def _words(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def version_of(definition: Definition) -> str:
    """Return the first line that holds a version number of the program, else "unknown"."""
    if not definition.version:
        return "unknown"
    command = [part.format(root=ROOT, python=sys.executable) for part in definition.version]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        for line in (done.stdout + done.stderr).splitlines():
            if re.search(r"\d+\.\d+", line):
                return line.strip()
    return "unknown"
