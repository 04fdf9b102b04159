"""Paths: the checkout, its `.runtime` folder, and the parts of a data directory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

CHECKOUT: Final = Path(__file__).resolve().parents[1]
CONFIG: Final = CHECKOUT / "conf"
RUNTIME: Final = CHECKOUT / ".runtime"
VENV_PYTHON: Final = RUNTIME / "venv" / "bin" / "python"
KAFKA_JARS: Final = RUNTIME / "jars" / "kafka"
SPARK_JARS: Final = RUNTIME / "jars" / "spark"

OTHERS: Final = 0o077
"""Permissions of everybody but the owner."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """The layout of one system's data directory."""

    root: Path

    BALANCER: ClassVar = Path("balancer")
    """From `root`: sockets, snapshot and HAProxy's files."""

    def make(self) -> None:
        """Make it if it is missing, for its owner alone; one that others could open is closed.

        It holds messages of clients (the log, the tables) and keys.

        Raises:
            OSError: It cannot be made, or belongs to another user.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.root.stat().st_mode & OTHERS:
            self.root.chmod(0o700)

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def holder(self) -> int | None:
        """Return the process identifier of the supervisor that holds the lock; None without one.

        A supervisor takes the lock when it begins to start, before it writes the system's state.
        """
        try:
            pid = int(self.lock.read_text(encoding="ascii"))
            opened = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
        except (OSError, ValueError):
            return None
        return pid if os.path.realpath(self.lock) in opened else None

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def api_token(self) -> Path:
        return self.root / "api-token"

    @property
    def connect_token(self) -> Path:
        return self.root / "connect-token"

    @property
    def rules_key(self) -> Path:
        """With which activations of rules are signed."""
        return self.root / "rules-key"

    @property
    def log_security(self) -> Path:
        """How the embedded log lets one in; made at its first start."""
        return self.root / "log-security.toml"

    @property
    def run(self) -> Path:
        """Heartbeats, one file a process; rewritten all the time."""
        return self.root / "run"

    @property
    def restarts(self) -> Path:
        """Requests to the supervisor, and their results (`launcher.supervision.requests`)."""
        return self.run / "restart"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def kafka(self) -> Path:
        return self.root / "kafka"

    @property
    def log_cluster(self) -> Path:
        """Identity of the log that checkpoints and tables count on; of an embedded log none."""
        return self.root / "log-cluster"

    @property
    def gateways(self) -> Path:
        """A folder for each gateway's cache of the log's state."""
        return self.root / "gateways"

    @property
    def balancer(self) -> Path:
        return self.root / self.BALANCER

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def heartbeat(self, process: str) -> Path:
        return self.run / f"{process}.json"

    def output(self, process: str) -> Path:
        """Standard output and error of the process."""
        return self.logs / f"{process}.out"
