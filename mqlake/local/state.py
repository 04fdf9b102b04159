"""The state of a one-machine system, for commands that talk to it; see `mqlake.status`."""

from pathlib import Path

from mqlake.local.paths import DataDirectory
from mqlake.status import GatewayAddress, ProcessReport, SystemState, load_state, read_state

__all__ = ["GatewayAddress", "ProcessReport", "SystemState", "connect_token", "read_state"]
__all__ += ["load_state"]


def connect_token(data_dir: Path) -> str:
    """Return the token that Spark Connect of this system asks for."""
    return DataDirectory(data_dir).connect_token.read_text(encoding="ascii").strip()
