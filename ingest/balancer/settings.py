"""Settings of the balancer; `conf/balancer.toml` lists them all with their defaults."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from ingest.balancer.fleet import Policy
from ingest.balancer.haproxy.configuration import Frontend, Kind, Layout, Proxy
from ingest.balancer.placement import Strategy
from mqlake.settings import LogSettings, ProcessSettings, SettingsGroup

_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""Of names that stand in HAProxy's configuration as they are."""


class NodeSettings(SettingsGroup):
    """A node of the list."""

    name: str = Field(min_length=1, max_length=255, description="unique")
    host: str = Field(min_length=1, description="address or host name")
    port: int = Field(ge=1, le=65535, description="of MQTT over TCP")
    tls_port: int | None = Field(default=None, ge=1, le=65535, description="of MQTT over TLS")
    websocket_port: int | None = Field(default=None, ge=1, le=65535)
    metrics_url: str = Field(default="", pattern=r"^(http://\S+)?$")
    capacity: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="predicted: how much it can do, of the others' measure, as a number of cores",
    )


class DnsSettings(SettingsGroup):
    """Nodes by a name that is looked up again and again."""

    name: str = Field(min_length=1, description="host name, or that of services")
    kind: Literal["address", "srv"] = "address"
    port: int = Field(default=1883, ge=1, le=65535, description="with address: of MQTT over TCP")
    metrics_url: str = Field(
        default="",
        pattern=r"^(http://\S+)?$",
        description="of each node, with {address} and {name} in it",
    )


class DiscoverySettings(SettingsGroup):
    """Where nodes are found; what is found in any way counts."""

    gateways: bool = Field(default=False, description="the gateways of the log")
    gateway_host: str = Field(
        default="127.0.0.1",
        description="host of a gateway that listens on all addresses, with {name} in it",
    )
    gateway_metrics_url: str = Field(
        default="",
        pattern=r"^(http://\S+)?$",
        description="of each gateway, with {address} and {name} in it; empty: as it says itself",
    )
    lease_seconds: float = Field(
        default=10.0, gt=0, le=3600, description="as of the gateways: silent for longer, gone"
    )
    dns: tuple[DnsSettings, ...] = ()
    dns_servers: tuple[str, ...] = Field(
        default=(), description="address or address:port; without any those of the system"
    )
    least_seconds: float = Field(
        default=5.0, ge=0.05, le=3600, description="a name is looked up no sooner again"
    )
    most_seconds: float = Field(
        default=30.0, ge=0.05, le=3600, description="and no later, whatever its time to live says"
    )


class WeightSettings(SettingsGroup):
    """How the weights of nodes are found."""

    scrape_seconds: float = Field(default=5.0, ge=0.05, le=3600, description="between two scrapes")
    window_seconds: float = Field(default=60.0, gt=0, le=86_400, description="of the mean")
    cpu_metric: str = Field(
        default="process_cpu_seconds_total", description="of Prometheus; its samples are added up"
    )
    cpu_kind: Literal["counter", "gauge"] = Field(
        default="counter", description="counter: seconds of processor time; gauge: percent"
    )
    cores: float = Field(default=1.0, gt=0, description="of a node that are 100 %")
    tolerance: int = Field(
        default=15,
        ge=1,
        le=100,
        description="predicted: points by which a weight must be wrong to be changed",
    )


class OverloadSettings(SettingsGroup):
    """When a node takes no new clients for its load."""

    metric: str = Field(
        default="mqlake_gateway_overload_level", description="of Prometheus: a level from 0 to 10"
    )
    threshold: int = Field(default=4, ge=0, le=10, description="above it: overloaded")
    release: int = Field(default=2, ge=0, le=10, description="at it or below: no longer")
    memory_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="a level counts so long when none follows"
    )

    @model_validator(mode="after")
    def _release_is_not_above(self) -> Self:
        if self.release > self.threshold:
            raise ValueError(f"release {self.release} is above threshold {self.threshold}")
        return self


class ProbeSettings(SettingsGroup):
    """The MQTT client that finds out whether a node is well."""

    every_seconds: float = Field(default=5.0, ge=0.05, le=3600, description="of each node")
    window_seconds: float = Field(default=2.0, gt=0, le=60, description="for one probe")
    concurrency: int = Field(default=20, ge=1, le=1000)
    fall: int = Field(default=2, ge=1, le=100, description="failures in a row: not healthy")
    rise: int = Field(default=1, ge=1, le=100, description="passes in a row: healthy again")
    topic_prefix: str = Field(default="mqlake/balancer/", pattern=r"^[^+#\x00]*$")
    username: str | None = None
    password: SecretStr | None = None


class PredictedSettings(SettingsGroup):
    """Of the strategy predicted."""

    session_shards: int = Field(
        default=16, ge=1, le=4096, description="as of mqlake.sessions, see conf/local.toml"
    )
    buckets_per_shard: int = Field(default=64, ge=1, le=1024)
    slack: float = Field(
        default=0.25, ge=0.0, le=10.0, description="of a node's even part that it may have more"
    )
    loads_file: Path | None = Field(
        default=None,
        description="lines tenant,client_id,rate,topic; read again when it has changed; may be "
        "missing",
    )
    talkers: int = Field(
        default=20_000,
        ge=0,
        le=200_000,
        description="clients that may be placed for the topics they hear, at most; 0: none",
    )


class HistorySettings(SettingsGroup):
    """What predicted.loads_file is made of, when nobody else makes it."""

    data_dir: Path | None = Field(
        default=None, description="of a system on this machine, whose API is asked; None: of none"
    )
    every_seconds: float = Field(
        default=86_400.0, ge=1, le=31_536_000, description="the file is made when it is older"
    )
    days: int = Field(default=7, ge=1, le=365, description="of the messages that count")
    rows: int = Field(
        default=100_000,
        ge=1,
        le=300_000,
        description="clients, topics and subscriptions of a tenant at most, of each so many",
    )


class ProxySettings(SettingsGroup):
    """One HAProxy."""

    name: str = Field(pattern=_WORD, description="unique; its localpeer")
    runtime_api: str = Field(
        min_length=1, description="path of its stats socket, or host:port; level admin"
    )
    peer: str = Field(
        default="",
        pattern=r"^(\S+:\d+)?$",
        description="host:port for its stick entries; all proxies have one or none",
    )
    configuration_file: Path | None = Field(
        default=None, description="haproxy.cfg, kept up to date, if it is on this machine"
    )
    map_file: Path = Field(
        default=Path("/etc/haproxy/mqlake-buckets.map"),
        description="as the proxy finds it; kept up to date with configuration_file",
    )
    talkers_file: Path = Field(
        default=Path("/etc/haproxy/mqlake-talkers.map"), description="likewise, of single clients"
    )


class FrontendSettings(SettingsGroup):
    """A port at which clients connect."""

    name: str = Field(pattern=_WORD, description="unique")
    kind: Kind = "tcp"
    bind: str = Field(pattern=r"^\S+:\d+$", description="as HAProxy writes it, such as *:1883")
    node_port: int | None = Field(
        default=None, ge=1, le=65535, description="the same at all nodes; without it as discovered"
    )
    certificate: Path | None = Field(
        default=None, description="PEM file with certificate and key; tls needs it"
    )
    send_proxy: bool = Field(default=False, description="PROXY protocol version 2 to the nodes")
    accept_proxy: bool = Field(
        default=False, description="a PROXY protocol header comes before everything else"
    )
    path: str = Field(default="/mqtt", pattern=r"^/\S*$", description="of websocket")
    sticky_by_source: bool = Field(
        default=False, description="tls_passthrough, websocket: by the address of the client"
    )
    tenants: dict[str, str] = Field(
        default_factory=dict,
        description="tenant by SNI; tls_passthrough lets no other names in",
    )

    @model_validator(mode="after")
    def _certificate_is_known(self) -> Self:
        if self.kind == "tls" and self.certificate is None:
            raise ValueError("kind tls needs a certificate")
        if self.kind in ("tcp", "tls_passthrough") and self.certificate is not None:
            raise ValueError(f"kind {self.kind} has no certificate")
        return self

    def to_frontend(self) -> Frontend:
        return Frontend(
            self.name,
            self.kind,
            self.bind,
            self.node_port,
            str(self.certificate or ""),
            self.send_proxy,
            self.accept_proxy,
            self.path,
            self.sticky_by_source,
            tuple(sorted(self.tenants.items())),
        )


class BalancerSettings(ProcessSettings):
    """The control plane of the load balancer."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_BALANCER_")

    log: LogSettings = LogSettings()

    name: str = Field(default="balancer", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    strategy: Strategy = Field(default="predicted", description="how new clients are placed")
    tenant: str = Field(
        default="default",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="of clients whose frontend and SNI say no other",
    )
    slots: int = Field(default=32, ge=1, le=1024, description="nodes at most")
    max_connections: int = Field(
        default=100_000, ge=1, le=10_000_000, description="clients of one proxy"
    )
    repair_seconds: float = Field(
        default=2.0, ge=0.05, le=3600, description="how often each proxy is looked at"
    )
    control_socket: Path = Field(
        default=Path("data/balancer/control.sock"),
        description="Unix socket of `mqlake balancer status`, `drain`, `undrain`",
    )
    state_file: Path = Field(
        default=Path("data/balancer/state.json"), description="the last good snapshot"
    )

    discovery: DiscoverySettings = DiscoverySettings()
    weights: WeightSettings = WeightSettings()
    overload: OverloadSettings = OverloadSettings()
    probe: ProbeSettings = ProbeSettings()
    predicted: PredictedSettings = PredictedSettings()
    history: HistorySettings = HistorySettings()
    nodes: tuple[NodeSettings, ...] = ()
    proxies: tuple[ProxySettings, ...] = ()
    frontends: tuple[FrontendSettings, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for kind in (self.nodes, self.proxies, self.frontends):
            names = [one.name for one in kind]
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"names are there twice: {', '.join(sorted(twice))}")
        if 0 < sum(bool(proxy.peer) for proxy in self.proxies) < len(self.proxies):
            raise ValueError("all proxies have a peer, or none")
        return self

    @model_validator(mode="after")
    def _history_has_a_file(self) -> Self:
        if self.history.data_dir is not None and self.predicted.loads_file is None:
            raise ValueError("history.data_dir needs predicted.loads_file, which it is to make")
        return self

    def lacking(self) -> list[str]:
        """Return what has to be set before any client is placed."""
        found: list[str] = []
        discovery = self.discovery
        if not (self.nodes or discovery.gateways or discovery.dns):
            found.append(
                "no nodes: set discovery.gateways = true, [[discovery.dns]] or [[nodes]] in the "
                "settings file (--config)"
            )
        if not self.proxies:
            found.append("no HAProxy to tell: set [[proxies]] in the settings file (--config)")
        if not self.frontends:
            found.append("no port for clients: set [[frontends]] in the settings file (--config)")
        return found

    def tenants(self) -> list[str]:
        """Return the tenants whose clients can be told."""
        named = (tenant for one in self.frontends for tenant in one.tenants.values())
        return sorted({self.tenant, *named})

    def policy(self) -> Policy:
        return Policy(
            strategy=self.strategy,
            slots=self.slots,
            window_seconds=self.weights.window_seconds,
            cpu_is_counter=self.weights.cpu_kind == "counter",
            cores=self.weights.cores,
            overload_threshold=self.overload.threshold,
            overload_release=self.overload.release,
            overload_memory_seconds=self.overload.memory_seconds,
            fall=self.probe.fall,
            rise=self.probe.rise,
            shards=self.predicted.session_shards,
            buckets_per_shard=self.predicted.buckets_per_shard,
            slack=self.predicted.slack,
            tolerance=self.weights.tolerance,
        )

    def layout(self) -> Layout:
        return Layout(
            strategy=self.strategy,
            frontends=tuple(one.to_frontend() for one in self.frontends),
            proxies=tuple(
                Proxy(one.name, one.runtime_api, str(one.map_file), str(one.talkers_file), one.peer)
                for one in self.proxies
            ),
            tenant=self.tenant,
            slots=self.slots,
            buckets=self.predicted.session_shards * self.predicted.buckets_per_shard,
            max_connections=self.max_connections,
        )
