"""`mqlake up --balanced`: HAProxy in front of the gateways of this machine, and its control plane.

Clients use the ports that the first gateway has otherwise. Behind them each gateway listens on
127.0.0.1: on ports of its own, counted up, and for HAProxy on some with the PROXY protocol, by
which gateways know where clients come from.
"""

import contextlib
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingest.balancer.control_plane import write_proxy_files
from ingest.balancer.settings import BalancerSettings, FrontendSettings
from ingest.balancer.state_file import load_state
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.listeners import (
    ListenerSettings,
    TcpListener,
    WebSocketListener,
    is_open,
)
from launcher.paths import DataDirectory
from launcher.planning.preflight import WantedPort
from launcher.settings import LocalSettings
from mqlake.errors import OperationalError
from mqlake.processes.control_socket import connect
from mqlake.processes.status import url_host
from mqlake.settings import load

BALANCER: Final = "balancer"
HAPROXY: Final = "haproxy"
OLDEST: Final = (2, 6)
_EVERYWHERE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared, not bound
_SEARCHED: Final = "/usr/sbin:/usr/local/sbin"
_OWN_FILES: Final = 500
_ANSWER_SECONDS: Final = 0.5
_CONNECTIONS: Final = re.compile(rb"^CurrConns: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Balancing:
    """Settings with which the two processes are started."""

    program: str
    """HAProxy."""
    settings: BalancerSettings
    """As its process has them; paths begin at the data directory, where both processes work."""
    entrances: tuple[str, ...]
    """URLs at which clients connect, that of `mqtt` first."""
    server_reference: str
    """The first for clients of 5.0 that are sent away by a gateway; empty: it is not known."""

    def environment(self) -> dict[str, str]:
        """Return the variables of the control plane; the rest is in its file."""
        settings = self.settings
        proxies, frontends = (
            "[" + ",".join(one.model_dump_json() for one in several) + "]"
            for several in (settings.proxies, settings.frontends)
        )
        return {
            "MQLAKE_BALANCER_CONTROL_SOCKET": str(settings.control_socket),
            "MQLAKE_BALANCER_STATE_FILE": str(settings.state_file),
            "MQLAKE_BALANCER_DISCOVERY__GATEWAYS": "true",
            "MQLAKE_BALANCER_PREDICTED__LOADS_FILE": str(settings.predicted.loads_file),
            **(
                {"MQLAKE_BALANCER_HISTORY__DATA_DIR": str(settings.history.data_dir)}
                if settings.history.data_dir is not None
                else {}
            ),
            "MQLAKE_BALANCER_PREDICTED__SESSION_SHARDS": str(settings.predicted.session_shards),
            "MQLAKE_BALANCER_MAX_CONNECTIONS": str(settings.max_connections),
            "MQLAKE_BALANCER_PROXIES": proxies,
            "MQLAKE_BALANCER_FRONTENDS": frontends,
        }

    def write_files(self, root: Path) -> None:
        """Write HAProxy's first configuration: the last snapshot, or no node.

        Raises:
            OperationalError: It cannot be written.
        """
        try:
            with contextlib.chdir(root):
                write_proxy_files(self.settings, load_state(self.settings.state_file).snapshot)
        except OSError as exc:
            raise OperationalError(f"HAProxy's configuration in {root}: {exc}") from exc

    def wanted_ports(self) -> list[WantedPort]:
        """Return the ports to be checked before anything starts."""
        options = {"mqtt": "--mqtt-port", "websocket": "--websocket-port"}
        wanted = []
        for one in self.settings.frontends:
            host, _, port = one.bind.rpartition(":")
            host = "0.0.0.0" if host in ("*", "") else host.strip("[]")  # noqa: S104 - asked for
            option = options.get(one.name, "setting frontends")
            wanted.append(WantedPort(host, int(port), f"HAProxy ({one.name})", option))
        return wanted

    def program_arguments(self) -> list[str]:
        """Return HAProxy's command line; it stays in the foreground, SIGUSR2 reloads it."""
        return [self.program, "-W", "-f", str(self.settings.proxies[0].configuration_file)]


def plan_balancing(
    config: Path | None,
    local: LocalSettings,
    gateway: GatewaySettings,
    mqtt_port: int,
    websocket_port: int,
) -> Balancing:
    """Return how clients are to be placed.

    Args:
        config: The file balancer.toml. Its frontends are kept beside `mqtt` and `websocket`, and
            in the place of these when they have their names.
        local: Settings of HAProxy on this machine.
        gateway: Settings of all gateways.
        mqtt_port: Port for clients.
        websocket_port: Port for clients over WebSocket; 0: none.

    Raises:
        OperationalError: There is no HAProxy, or an old one; or other machines would reach
            listeners without a login.
    """
    program = find_haproxy()
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host or "*"
    own = [FrontendSettings(name="mqtt", bind=f"{host}:{mqtt_port}", send_proxy=True)]
    reached = url_host(gateway.host)
    entrances = [f"mqtt://{reached}:{mqtt_port}"]
    if websocket_port:
        bind = f"{host}:{websocket_port}"
        own.append(FrontendSettings(name="websocket", kind="websocket", bind=bind, send_proxy=True))
        entrances.append(f"ws://{reached}:{websocket_port}/mqtt")
    settings = _settings(config, own, local.session_shards)
    _check_strangers(settings, gateway)
    told = gateway.advertised_host or ("" if host == "*" or host in _EVERYWHERE else host)
    reference = gateway.server_reference or (f"{told}:{mqtt_port}" if told else "")
    return Balancing(program, settings, tuple(entrances), reference)


def _settings(
    config: Path | None, own: list[FrontendSettings], session_shards: int
) -> BalancerSettings:
    """Return the settings of the file, with all that is known of this machine."""
    given = load(BalancerSettings, config)
    taken = {one.name for one in given.frontends}
    folder = DataDirectory.BALANCER
    proxy = {
        "name": HAPROXY,
        "runtime_api": f"{folder}/haproxy.sock",
        "configuration_file": folder / "haproxy.cfg",
        "map_file": folder / "buckets.map",
        "talkers_file": folder / "talkers.map",
    }
    history = given.history
    if given.predicted.loads_file is None:
        # Here the file is made from the history of this system.
        history = history.model_copy(update={"data_dir": Path()})
    return load(
        BalancerSettings,
        config,
        control_socket=folder / "control.sock",
        state_file=folder / "state.json",
        discovery=given.discovery.model_copy(update={"gateways": True}),
        predicted=given.predicted.model_copy(
            update={
                "session_shards": session_shards,
                "loads_file": given.predicted.loads_file or folder / "loads.csv",
            }
        ),
        history=history,
        max_connections=min(given.max_connections, _most_connections()),
        proxies=(proxy,),
        frontends=(*(one for one in own if one.name not in taken), *given.frontends),
    )


def proxied_listeners(ports: tuple[int, int]) -> tuple[ListenerSettings, ...]:
    """Return the listeners for HAProxy: MQTT over TCP and WebSocket, of this machine alone."""
    tcp, websocket = ports
    return (
        TcpListener(port=tcp, proxy_protocol=True),
        WebSocketListener(port=websocket, proxy_protocol=True),
    )


def find_haproxy() -> str:
    """Return HAProxy's program.

    Raises:
        OperationalError: There is none, or it is too old.
    """
    program = shutil.which(HAPROXY) or shutil.which(HAPROXY, path=_SEARCHED)
    if program is None:
        raise OperationalError(
            "there is no HAProxy, which --balanced needs: install it (Debian: apt install haproxy)"
        )
    told = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"version (\d+)\.(\d+)", told.stdout)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        said = told.stdout.partition("\n")[0] or "nothing of its version"
        raise OperationalError(f"{program} says {said!r}, --balanced needs {oldest} or later")
    return program


def _check_strangers(settings: BalancerSettings, gateway: GatewaySettings) -> None:
    """Let strangers in by HAProxy only where the gateways would let them in.

    TLS that is passed through ends at a listener of the gateways, which says that itself.
    """
    missing = gateway.missing_for_strangers
    for one in settings.frontends if missing else ():
        host, _, port = one.bind.rpartition(":")
        if one.kind != "tls_passthrough" and is_open(
            TcpListener(host=host.strip("[]").replace("*", ""), port=int(port))
        ):
            raise OperationalError(
                f"other machines reach the frontend {one.name} at {one.bind}, and {missing} in "
                "conf/gateway.toml"
            )


def _most_connections() -> int:
    """Return how many clients HAProxy can have: each takes two files, and it needs some itself."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 10_000_000 if most == resource.RLIM_INFINITY else max(1, (most - _OWN_FILES) // 2)


def ask_haproxy(socket: Path) -> int | None:
    """Return how many connections HAProxy has; None when it does not answer."""
    try:
        with connect(socket, _ANSWER_SECONDS) as asking:
            asking.sendall(b"show info\n")
            answer = bytearray()
            while data := asking.recv(65_536):
                answer += data
    except OSError:
        return None
    found = _CONNECTIONS.search(answer)
    return None if found is None else int(found[1])
