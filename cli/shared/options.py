"""Options that several commands share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mqlake.api_client import ApiAddress
from mqlake.log.security import LogServers
from mqlake.processes.status import read_state

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

data_dir: _Decorator = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("data"),
    help="Data directory of the system.",
)


def system(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command ask the API of a system: that of a data directory here, or one elsewhere.

    The command gets it as `system`, for `ApiClient`.
    """

    @data_dir
    @click.option(
        "--api",
        "url",
        metavar="URL",
        envvar="MQLAKE_URL",
        help="API of a system elsewhere, such as https://mqlake.example:8080, instead of "
        "--data-dir; needs --token-file.",
    )
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        envvar="MQLAKE_TOKEN_FILE",
        help="File with a key of that API.",
    )
    @functools.wraps(command)
    def ask(
        *arguments: Any, data_dir: Path, url: str | None, token_file: Path | None, **options: Any
    ) -> Any:
        if url is None:
            return command(*arguments, system=data_dir, **options)
        if token_file is None:
            raise click.UsageError("--api needs --token-file, a file with a key of that API")
        return command(*arguments, system=ApiAddress(url, token_file), **options)

    return ask


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
