"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mqlake.log.security import LogServers
from mqlake.processes.status import read_state

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

data_dir: _Decorator = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("data"),
    help="Data directory of the system.",
)

config: _Decorator = click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=None,
    help="Settings file (TOML); environment variables override it.",
)

as_json: _Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

tenants: _Decorator = click.option(
    "--tenant",
    "tenants",
    metavar="NAME",
    multiple=True,
    help="Tenants to restrict it to; it then gives no access to anything else.  [default: no "
    "restriction]",
)

topics: _Decorator = click.option(
    "--topic",
    "topics",
    metavar="FILTER",
    multiple=True,
    help="Topics to restrict it to; it then gives no access to anything else.  [default: no "
    "restriction]",
)

log_servers: _Decorator = click.option(
    "--log-servers",
    metavar="HOST:PORT,…",
    help="Kafka bootstrap servers.  [default: the log of the system in --data-dir]",
)

security_file: _Decorator = click.option(
    "--security-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    envvar="MQLAKE_LOCAL_LOG_SECURITY_FILE",
    help="Protocol, login and certificates of that log (docs/security.md).",
)

timeout: _Decorator = click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    help="Timeout in seconds; completed steps remain in effect.",
)


def named_log(data_dir: Path, log_servers: str | None, security_file: Path | None) -> str:
    """Return how the log is reached that is named, or else that of the system of a data directory.

    Raises:
        OperationalError: No log is named, and no system runs there.
    """
    if log_servers:
        return LogServers(log_servers, security_file)
    return read_state(data_dir).bootstrap_servers
