"""A PostgreSQL server of its own, from Debian's packages."""

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.ports import free_ports

USER = "mqlake"
PASSWORD = "a password with ' and \\"
INSTALL = "PostgreSQL is missing: apt install postgresql"


def programs() -> Path:
    """Return the folder of the newest version's programs.

    Raises:
        FileNotFoundError: There is none; with what to do.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise FileNotFoundError(INSTALL)
    return found[-1].parent


@dataclass(slots=True)
class Postgres:
    folder: Path
    port: int

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(self.folder / "log")
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", log, "-o", options)

    def stop(self, *, mode: str = "immediate") -> None:
        self._run("pg_ctl", "stop", "-w", "-m", mode, "-D", self._data)

    def query(self, statement: str) -> list[str]:
        """Return the lines of a statement's result."""
        where = ("-h", str(self.folder), "-p", str(self.port), "-U", USER, "-d", "postgres")
        output = self._run(
            "psql", *where, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement
        )
        return output.splitlines()

    def connection(self, name: str = "warehouse") -> dict[str, str]:
        """Return the settings of a connection to it, for the runner's environment."""
        prefix = f"MQLAKE_RULES_CONNECTIONS__{name.upper()}__"
        return {
            f"{prefix}KIND": "postgresql",
            f"{prefix}HOST": "127.0.0.1",
            f"{prefix}PORT": str(self.port),
            f"{prefix}DATABASE": "postgres",
            f"{prefix}USER": USER,
            f"{prefix}PASSWORD": PASSWORD,
        }

    def create(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(PASSWORD, encoding="utf-8")
        if os.geteuid() == 0:
            # The server refuses to run as root; Debian's package has made it a user.
            self.folder.chmod(0o755)
            shutil.chown(self.folder, "postgres", "postgres")
            shutil.chown(password_file, "postgres", "postgres")
        arguments = ("-U", USER, "--auth-local=trust", "--auth-host=scram-sha-256", "-N")
        self._run("initdb", "-D", self._data, *arguments, f"--pwfile={password_file}", "-E", "UTF8")

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(programs() / program), *arguments]
        if os.geteuid() == 0:
            command = [
                "setpriv",
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                *command,
            ]
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE if program in ("psql", "initdb") else subprocess.DEVNULL,
            stderr=subprocess.PIPE if program in ("psql", "initdb") else subprocess.DEVNULL,
            text=True,
            check=False,
            cwd=self.folder,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            timeout=60,
        )
        if result.returncode != 0:
            raise OSError(f"{program} as {getpass.getuser()}: {result.stderr}")
        return result.stdout or ""


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="mqlake-pg-"))
    server = Postgres(folder, free_ports(1)[0])
    try:
        server.create()
        server.start()
        yield server
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
