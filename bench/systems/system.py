"""The system under measurement and the programs that put the load on it."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load.loader import Load, LoadResult, run_load
from bench.load.programs import LoadPrograms
from bench.systems.gateways import BenchGateway
from bench.systems.processes import cpu_percent_of, processes_of
from launcher.testing.systems import LocalSystem
from mqlake.processes.status import SystemState, read_state

QUIET_PERCENT: Final = 60.0
QUIET_SECONDS: Final = 20.0
"""How long to wait at most until the system has done the work that an earlier load left."""

GATEWAY_NAME: Final = "bench"


@dataclass(frozen=True, slots=True)
class Bench:
    """A running system and the load programs to put on it."""

    data_dir: Path
    programs: LoadPrograms
    ready_seconds: float | None = None
    """From the command to the line that says ready; None when it ran already."""
    own: LocalSystem | None = None
    """Started for the bench, which may do anything with it; None: it is in use."""
    note: Callable[[str], None] = print
    """Tells the user something beside the figures."""

    @property
    def state(self) -> SystemState:
        """State of the system now: processes may have come and gone."""
        return read_state(self.data_dir)

    @property
    def gateways(self) -> list[str]:
        return [f"127.0.0.1:{gateway.port}" for gateway in self.state.gateways]

    def run(self, load: Load) -> LoadResult:
        """Wait until the system is quiet, then put a load on it.

        Raises:
            OperationalError: The loader gave up.
        """
        self.await_quiet()
        return run_load(self.programs.loader, load)

    def await_quiet(self) -> None:
        """Wait until the system has done the work that an earlier load left, within limits."""
        pids = processes_of(self.state)
        deadline = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < deadline:
            if sum(cpu_percent_of(pids, 1.0).values()) < QUIET_PERCENT:
                return


@contextmanager
def fresh_gateway(state: SystemState) -> Iterator[BenchGateway]:
    """Add a gateway without clients so far to the system for the length of a `with` block.

    It has default settings and the environment of those that the launcher starts.

    Raises:
        OperationalError: It does not become healthy.
    """
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-gateway-") as name:
        gateway = BenchGateway.start(Path(name), GATEWAY_NAME, state.bootstrap_servers)
        try:
            gateway.await_healthy()
            yield gateway
        finally:
            gateway.process.terminate()
            gateway.await_end()
