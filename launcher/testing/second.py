"""A second process with the name of a gateway that runs, for tests: it has to be refused.

python -m launcher.testing.second DATA_DIR GATEWAY

It is given all that the first one was given but things that they cannot share. The process becomes
the gateway; it logs to its standard error output, and so to standard output.
"""

import os
import sys
from pathlib import Path

from launcher.ports import free_ports
from mqlake.errors import OperationalError
from mqlake.processes.status import read_state


def main(arguments: list[str]) -> None:
    """Become the gateway.

    Raises:
        OperationalError: No gateway of this name runs there.
    """
    data_dir, gateway = Path(arguments[0]), arguments[1]
    pids = {process.name: process.pid for process in read_state(data_dir).processes}
    pid = pids.get(gateway)
    if pid is None:
        raise OperationalError(f"{gateway} does not run, so there can be no second one")
    command, given = (
        Path(f"/proc/{pid}/{file}").read_bytes().decode().rstrip("\0").split("\0")
        for file in ("cmdline", "environ")
    )
    environment = dict(one.split("=", 1) for one in given)
    environment.pop("MQLAKE_GATEWAY_LOG_FILE", None)
    name = f"second-{gateway}"
    port, metrics_port = free_ports(2)
    environment |= {
        "MQLAKE_GATEWAY_PORT": str(port),
        "MQLAKE_GATEWAY_METRICS__PORT": str(metrics_port),
        "MQLAKE_GATEWAY_LISTENERS": "[]",
        "MQLAKE_GATEWAY_STORE_DIR": str(data_dir / "gateways" / name),
        "MQLAKE_GATEWAY_HEARTBEAT_FILE": str(data_dir / "run" / f"{name}.json"),
    }
    os.chdir(data_dir)
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    os.execve(command[0], command, environment)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
