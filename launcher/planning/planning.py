"""Plan a system: read the settings, check the machine, choose the ports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from api.settings import ApiSettings
from ingest.federation.settings import FederationSettings
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.listeners import ListenerSettings
from launcher.java import find_java_home
from launcher.log.kafka import KafkaServer
from launcher.metrics import SUPERVISOR
from launcher.paths import RUNTIME, DataDirectory
from launcher.planning import preflight
from launcher.planning.balancing import BALANCER, Balancing, plan_balancing, proxied_listeners
from launcher.planning.listeners import listeners_of, reachable_addresses, wanted_ports
from launcher.planning.parts import API, FEDERATION, LAKE, QUERY, ROUTER, RULES, SystemPlan
from launcher.planning.preflight import WantedPort
from launcher.ports import claim, free_ports
from launcher.settings import LocalSettings
from mqlake.processes.status import GatewayAddress, SystemState
from mqlake.security.tls import server_context
from mqlake.settings import LogSettings, MetricsSettings, load
from rules.runner.settings import RulesSettings
from streaming.settings.lake import LakeSettings
from streaming.settings.query import QuerySettings
from streaming.settings.router import RouterSettings


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `mqlake up`; None leaves it to the settings files."""

    data_dir: Path
    config_dir: Path
    gateways: int = 1
    mqtt_port: int | None = None
    api_port: int | None = None
    websocket_port: int | None = None
    balanced: bool = False
    federation: Path | None = None
    """Settings of the federator."""
    log_servers: str | None = None


def plan_system(options: Options, data: DataDirectory, previous: SystemState | None) -> SystemPlan:
    """Check everything that can be known beforehand and choose the ports.

    Args:
        options: Command-line options of the user.
        data: The data directory.
        previous: State of the last run: its ports are chosen again where they are free.

    Raises:
        MqlakeError: The system cannot run with these settings, or on this machine.
    """
    files = _read(options)
    certificate = _check_certificate(files.api, data)
    _check_machine(files.local, data, options.gateways)
    balancing = _plan_balancing(options, files)
    gateways = _place_gateways(options, files, is_balanced=balancing is not None)
    api_port = files.api.port if options.api_port is None else options.api_port
    metrics = dict(_metrics(files, gateways.names, balancing))
    wanted = list(_wanted_ports(files, gateways, balancing, api_port, metrics))
    preflight.check_ports(wanted)
    ports, earlier = _Ports(wanted), _EarlierPorts.of(previous)
    kafka = None if files.local.log_servers else _plan_log(files.local, data, ports, earlier)
    connect_port = (
        files.query.connect_port if files.has_connect_port else ports.choose(earlier.connect)
    )
    metrics = {
        name: one if one.port else _with_port(one, ports.choose(earlier.metrics.get(name)))
        for name, one in metrics.items()
    }
    listeners = gateways.listeners
    if balancing is not None:
        listeners = {
            name: (*some, *proxied_listeners((ports.choose(), ports.choose())))
            for name, some in listeners.items()
        }
    return SystemPlan(
        data,
        files.local,
        kafka,
        connect_port,
        gateways.addresses(listeners),
        listeners,
        files.api.host,
        api_port,
        options.config_dir,
        metrics,
        balancing,
        options.federation,
        certificate,
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """Settings of all processes."""

    local: LocalSettings
    gateway: GatewaySettings
    api: ApiSettings
    router: RouterSettings
    lake: LakeSettings
    query: QuerySettings
    rules: RulesSettings
    federation: FederationSettings | None

    @property
    def has_connect_port(self) -> bool:
        """Tell whether a file names the port of Spark Connect."""
        return "connect_port" in self.query.model_fields_set


@dataclass(frozen=True, slots=True)
class _Gateways:
    """Addresses of the gateways: names, ports that count up, and listeners beside MQTT's."""

    host: str
    first_port: int
    listeners: Mapping[str, tuple[ListenerSettings, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.listeners)

    def addresses(
        self, listeners: Mapping[str, tuple[ListenerSettings, ...]]
    ) -> tuple[GatewayAddress, ...]:
        """Return where clients reach each gateway, with all its listeners."""
        return tuple(
            GatewayAddress(
                name, self.host, self.first_port + number, reachable_addresses(listeners[name])
            )
            for number, name in enumerate(self.names)
        )


@dataclass(frozen=True, slots=True)
class _EarlierPorts:
    """Ports of the last run that no setting names; None: there was none."""

    log: int | None
    controller: int | None
    connect: int | None
    metrics: Mapping[str, int]
    """By process."""

    @classmethod
    def of(cls, state: SystemState | None) -> "_EarlierPorts":
        if state is None:
            return cls(None, None, None, {})
        has_log = state.controller_port is not None
        return cls(
            int(state.bootstrap_servers.rpartition(":")[2]) if has_log else None,
            state.controller_port,
            state.connect_port,
            {name: urlsplit(url).port or 0 for name, url in state.metrics.items()},
        )


class _Ports:
    """Chooses ports that are free.

    Args:
        wanted: Named by settings.
    """

    def __init__(self, wanted: list[WantedPort]) -> None:
        self._taken = {want.port for want in wanted}

    def choose(self, earlier: int | None = None) -> int:
        """Return the port of the last run if it is free, so that users find it again."""
        if earlier and earlier not in self._taken and claim(earlier):
            port = earlier
        else:
            while (port := free_ports(1)[0]) in self._taken:
                pass
        self._taken.add(port)
        return port


def _read(options: Options) -> _Files:
    named = {} if options.log_servers is None else {"log_servers": options.log_servers}
    federation = None
    if options.federation is not None:
        federation = load(FederationSettings, options.federation, log=LogSettings())
    return _Files(
        local=load(LocalSettings, _file(options, "local"), **named),
        gateway=load(GatewaySettings, _file(options, "gateway")),
        api=load(ApiSettings, _file(options, "api")),
        router=load(RouterSettings, _file(options, "router")),
        lake=load(LakeSettings, _file(options, "lake")),
        query=load(QuerySettings, _file(options, "query"), connect_token="unused"),  # noqa: S106
        rules=load(RulesSettings, _file(options, "rules")),
        federation=federation,
    )


def _file(options: Options, process: str) -> Path | None:
    path = options.config_dir / f"{process}.toml"
    return path if path.is_file() else None


def _check_certificate(api: ApiSettings, data: DataDirectory) -> Path | None:
    """Return where the API, which runs in the data directory, finds its certificate.

    Raises:
        OperationalError: It cannot be used.
    """
    if api.certificate is None or api.key is None:
        return None
    password = api.key_password.get_secret_value() if api.key_password else ""
    certificate = data.root / api.certificate
    server_context(certificate, data.root / api.key, password, api.minimum_tls_version)
    return certificate


def _check_machine(local: LocalSettings, data: DataDirectory, gateways: int) -> None:
    find_java_home(RUNTIME)
    preflight.check_contents(data, embedded=not local.log_servers)
    available = preflight.read_available_memory()
    preflight.check_memory(available, local.min_available_memory_mb, gateways)
    preflight.check_disk(data.root, local.min_free_disk_mb)


def _entrance_ports(options: Options, files: _Files) -> tuple[int, int]:
    """Return the ports for MQTT and WebSocket that clients know; 0: no WebSocket."""
    mqtt = files.gateway.port if options.mqtt_port is None else options.mqtt_port
    named = options.websocket_port
    return mqtt, files.local.websocket_port if named is None else named


def _plan_balancing(options: Options, files: _Files) -> Balancing | None:
    if not options.balanced:
        return None
    ports = _entrance_ports(options, files)
    return plan_balancing(_file(options, "balancer"), files.local, files.gateway, *ports)


def _place_gateways(options: Options, files: _Files, *, is_balanced: bool) -> _Gateways:
    """Say where gateways listen: behind a balancer on this machine alone, beside its ports."""
    host = files.gateway.host
    mqtt_port, websocket_port = _entrance_ports(options, files)
    if is_balanced:
        host, mqtt_port, websocket_port = "127.0.0.1", mqtt_port + 1, 0
    listeners = {
        f"gateway-{number + 1}": listeners_of(files.gateway, number, websocket_port)
        for number in range(options.gateways)
    }
    return _Gateways(host, mqtt_port, listeners)


def _metrics(
    files: _Files, gateways: tuple[str, ...], balancing: Balancing | None
) -> Iterator[tuple[str, MetricsSettings]]:
    """Yield by process where it serves its metrics; port 0: one is to be chosen."""
    yield SUPERVISOR, files.local.metrics
    yield ROUTER, files.router.metrics
    yield LAKE, files.lake.metrics
    yield RULES, files.rules.metrics
    yield API, files.api.metrics
    yield QUERY, files.query.metrics
    own = files.gateway.metrics
    for number, name in enumerate(gateways):
        yield name, _with_port(own, own.port + number) if own.port else own
    if balancing is not None:
        yield BALANCER, balancing.settings.metrics
    if files.federation is not None:
        yield FEDERATION, files.federation.metrics


def _with_port(metrics: MetricsSettings, port: int) -> MetricsSettings:
    return metrics.model_copy(update={"port": port})


def _wanted_ports(
    files: _Files,
    gateways: _Gateways,
    balancing: Balancing | None,
    api_port: int,
    metrics: Mapping[str, MetricsSettings],
) -> Iterator[WantedPort]:
    """Yield the ports that options and settings name."""
    for number, name in enumerate(gateways.names):
        port = gateways.first_port + number
        yield WantedPort(gateways.host, port, f"MQTT ({name})", "--mqtt-port")
    if balancing is not None:
        yield from balancing.wanted_ports()
    for name, listeners in gateways.listeners.items():
        yield from wanted_ports(name, listeners)
    yield WantedPort(files.api.host, api_port, "the API", "--api-port")
    local = files.local
    if local.log_port is not None and not local.log_servers:
        yield WantedPort("127.0.0.1", local.log_port, "the log", "setting log_port")
    if files.has_connect_port:
        connect_port = files.query.connect_port
        yield WantedPort("127.0.0.1", connect_port, "Spark Connect", "setting connect_port")
    if files.federation is not None and (listen := files.federation.listen).port:
        yield WantedPort(listen.host, listen.port, "neighbours' federators", "setting listen.port")
    for name, one in metrics.items():
        if one.port:
            yield WantedPort(one.host, one.port, f"metrics ({name})", "setting metrics.port")


def _plan_log(
    local: LocalSettings, data: DataDirectory, ports: _Ports, earlier: _EarlierPorts
) -> KafkaServer:
    """Plan the embedded log."""
    return KafkaServer(
        data.kafka,
        data.logs,
        local.log_port or ports.choose(earlier.log),
        ports.choose(earlier.controller),
        heap_mebibytes=local.log_heap_mb,
        security_file=data.log_security,
    )
