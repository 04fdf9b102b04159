"""Settings of the balancer; `conf/balancer.toml` lists them all with their defaults."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from ingest.balancer.fleet import Policy
from ingest.balancer.haproxy.configuration import Frontend, Kind, Proxy, ProxyLayout
from ingest.balancer.placement import Strategy
from mqlake.settings import LogSettings, ProcessSettings, SettingsGroup

_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""Form of names that stand in HAProxy's configuration as they are."""


class NodeSettings(SettingsGroup):
    """A static node."""

    name: str = Field(
        min_length=1,
        max_length=255,
        description="Name of the node, unique.",
        examples=["gateway-1"],
    )
    host: str = Field(
        min_length=1,
        description="Address or host name.",
        examples=["10.0.0.11"],
    )
    port: int = Field(
        ge=1,
        le=65535,
        description="TCP port of MQTT.",
        examples=[1883],
    )
    tls_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of MQTT over TLS, for frontends of that kind.",
        examples=[8883],
    )
    websocket_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of MQTT over WebSocket, for frontends of that kind.",
        examples=[8083],
    )
    metrics_url: str = Field(
        default="",
        pattern=r"^(http://\S+)?$",
        description="URL of the node's metrics for Prometheus, such as "
        '"http://10.0.0.11:9464/metrics". Empty: none.',
    )
    capacity: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="With strategy predicted: capacity of the node relative to the others, as a "
        "number of cores.",
    )


class DnsSettings(SettingsGroup):
    """A name in DNS that is resolved periodically."""

    name: str = Field(
        min_length=1,
        description="Host name or service name.",
        examples=["gateways.example.org"],
    )
    kind: Literal["address", "srv"] = Field(
        default="address", description='"address" for hosts (A, AAAA), "srv" for services.'
    )
    port: int = Field(
        default=1883,
        ge=1,
        le=65535,
        description="Port of MQTT over TCP, for hosts; SRV records contain their own.",
    )
    metrics_url: str = Field(
        default="",
        pattern=r"^(http://\S+)?$",
        description="URL of each node's metrics for Prometheus; {address} and {name} are "
        "replaced. Empty: none.",
    )


class DiscoverySettings(SettingsGroup):
    """Sources of nodes; nodes of all sources are used."""

    gateways: bool = Field(
        default=False,
        description="Whether the gateways registered in the log (mqlake.gateways) are nodes.",
    )
    gateway_host: str = Field(
        default="127.0.0.1",
        description="Host of a gateway that listens on all addresses; {name} is replaced.",
    )
    gateway_metrics_url: str = Field(
        default="",
        pattern=r"^(http://\S+)?$",
        description="URL of each gateway's metrics for Prometheus; {address} and {name} are "
        "replaced. Empty: as the gateway reports.",
    )
    lease_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="A gateway without a heartbeat for this time is considered gone; as in "
        "conf/gateway.toml.",
    )
    dns: tuple[DnsSettings, ...] = Field(
        default=(), description="Names in DNS that are resolved periodically."
    )
    dns_servers: tuple[str, ...] = Field(
        default=(),
        description="Name servers, address or address:port. Empty: the system's.",
    )
    least_seconds: float = Field(
        default=5.0,
        ge=0.05,
        le=3600,
        description="Minimum interval between lookups of a name, which otherwise follow its time "
        "to live.",
    )
    most_seconds: float = Field(
        default=30.0,
        ge=0.05,
        le=3600,
        description="Maximum interval between lookups of a name.",
    )


class WeightSettings(SettingsGroup):
    """How node weights are computed: max(1, round(100 - mean CPU))."""

    scrape_seconds: float = Field(
        default=5.0,
        ge=0.05,
        le=3600,
        description="Interval between scrapes.",
    )
    window_seconds: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="Period over which the mean is computed.",
    )
    cpu_metric: str = Field(
        default="process_cpu_seconds_total",
        description="Prometheus metric; its samples are added up.",
    )
    cpu_kind: Literal["counter", "gauge"] = Field(
        default="counter",
        description='"counter": seconds of processor time; "gauge": percent.',
    )
    cores: float = Field(
        default=1.0,
        gt=0,
        description="Number of cores that count as 100 %.",
    )
    tolerance: int = Field(
        default=15,
        ge=1,
        le=100,
        description="With strategy predicted: change a weight only if it is off by at least this "
        "many points; each change moves clients.",
    )


class NodeOverloadSettings(SettingsGroup):
    """When a node gets no new clients because it is overloaded."""

    metric: str = Field(
        default="mqlake_gateway_overload_level",
        description="Prometheus metric: a level from 0 to 10.",
    )
    threshold: int = Field(
        default=4,
        ge=0,
        le=10,
        description="Above this level a node is overloaded.",
    )
    release: int = Field(
        default=2,
        ge=0,
        le=10,
        description="At or below this level a node is no longer overloaded.",
    )
    memory_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="A level expires after this time without a new one.",
    )

    @model_validator(mode="after")
    def _release_is_not_above(self) -> Self:
        if self.release > self.threshold:
            raise ValueError(f"release {self.release} is above threshold {self.threshold}")
        return self


class ProbeSettings(SettingsGroup):
    """The MQTT client that checks the health of nodes."""

    every_seconds: float = Field(
        default=5.0,
        ge=0.05,
        le=3600,
        description="Interval between probes of a node.",
    )
    window_seconds: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="Timeout for one probe.",
    )
    concurrency: int = Field(
        default=20,
        ge=1,
        le=1000,
        description="Maximum number of probes at the same time.",
    )
    fall: int = Field(
        default=2,
        ge=1,
        le=100,
        description="Failed probes in a row after which a node gets no new clients. One refused "
        "connection suffices.",
    )
    rise: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Successful probes in a row after which it gets new clients again.",
    )
    topic_prefix: str = Field(
        default="mqlake/balancer/",
        pattern=r"^[^+#\x00]*$",
        description="Prefix of the topic that the client subscribes and publishes to.",
    )
    username: str | None = Field(
        default=None,
        description="User name of the client, if nodes require a login.",
        examples=["balancer"],
    )
    password: SecretStr | None = Field(
        default=None, description="Password of that user.", examples=["…"]
    )


class PredictedSettings(SettingsGroup):
    """Settings of the strategy predicted."""

    session_shards: int = Field(
        default=16,
        ge=1,
        le=4096,
        description="As session_shards in conf/local.toml, so that clients reach the gateway that "
        "has their session.",
    )
    buckets_per_shard: int = Field(
        default=64,
        ge=1,
        le=1024,
        description="Clients are distributed over session_shards * buckets_per_shard buckets.",
    )
    slack: float = Field(
        default=0.25,
        ge=0.0,
        le=10.0,
        description="How much a node may exceed its even share: 0.25 is a quarter.",
    )
    loads_file: Path | None = Field(
        default=None,
        description="CSV file, tenant,client_id,rate,topic: messages that clients are expected to "
        "publish and receive (docs/balancer.md). Reloaded when it changes; may be missing.",
        examples=[Path("data/loads.csv")],
    )
    talkers: int = Field(
        default=20_000,
        ge=0,
        le=200_000,
        description="Maximum clients placed with others that subscribe to the same topics; each "
        "is an entry of a map in HAProxy. 0: none.",
    )


class HistorySettings(SettingsGroup):
    """Source of predicted.loads_file: the history of a system, queried over its API."""

    data_dir: Path | None = Field(
        default=None,
        description="Data directory of a system on this machine, whose API is queried. "
        "`bin/mqlake up --balanced` sets its own, unless loads_file is set.",
        examples=[Path("data")],
    )
    every_seconds: float = Field(
        default=86_400.0,
        ge=1,
        le=31_536_000,
        description="Maximum age of the file before it is written again.",
    )
    days: int = Field(
        default=7,
        ge=1,
        le=365,
        description="Days of messages to use.",
    )
    rows: int = Field(
        default=100_000,
        ge=1,
        le=300_000,
        description="Maximum number each of clients, topics and subscriptions per tenant.",
    )


class ProxySettings(SettingsGroup):
    """A HAProxy process."""

    name: str = Field(
        pattern=_WORD,
        description="Name of the proxy, unique; its localpeer.",
        examples=["proxy-1"],
    )
    runtime_api: str = Field(
        min_length=1,
        description="Path of the stats socket, or host:port; requires level admin.",
        examples=["/run/haproxy/mqlake.sock"],
    )
    peer: str = Field(
        default="",
        pattern=r"^(\S+:\d+)?$",
        description="host:port at which proxies exchange the placement of clients, also with a "
        "proxy that reloads. Set it for all proxies or for none.",
    )
    configuration_file: Path | None = Field(
        default=None,
        description="haproxy.cfg to keep up to date, if it is on this machine.",
        examples=[Path("/etc/haproxy/haproxy.cfg")],
    )
    map_file: Path = Field(
        default=Path("/etc/haproxy/mqlake-buckets.map"),
        description="Path, as the proxy sees it, of the map from buckets to slots; kept up to "
        "date with configuration_file.",
    )
    talkers_file: Path = Field(
        default=Path("/etc/haproxy/mqlake-talkers.map"),
        description="Likewise, of the map from single clients to slots.",
    )


class FrontendSettings(SettingsGroup):
    """A port to which clients connect."""

    name: str = Field(
        pattern=_WORD,
        description="Name of the frontend, unique.",
        examples=["mqtt"],
    )
    kind: Kind = Field(
        default="tcp",
        description="tcp; tls ends here; tls_passthrough ends at the nodes; websocket is ws, or "
        "wss with a certificate.",
    )
    bind: str = Field(
        pattern=r"^\S+:\d+$",
        description="Bind address, in HAProxy's syntax.",
        examples=["*:1883"],
    )
    node_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port at all nodes. Default: the discovered port.",
        examples=[1884],
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM file with certificate and key, for tls, and for websocket as wss.",
        examples=[Path("/etc/haproxy/mqtt.pem")],
    )
    send_proxy: bool = Field(
        default=False,
        description="Whether to send PROXY protocol version 2 to nodes; their listener must "
        "expect it (proxy_protocol in conf/gateway.toml).",
    )
    accept_proxy: bool = Field(
        default=False,
        description="Whether connections start with a PROXY protocol header.",
    )
    path: str = Field(
        default="/mqtt",
        pattern=r"^/\S*$",
        description="URL path of websocket.",
    )
    sticky_by_source: bool = Field(
        default=False,
        description="For tls_passthrough and websocket, where the client identifier is not "
        "visible: whether clients of an address return to the same node.",
    )
    tenants: dict[str, str] = Field(
        default_factory=dict,
        description="Tenant by SNI; tls_passthrough refuses other names.",
        examples=[{"acme.example.org": "acme"}],
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
    """Settings of the load balancer's control plane (docs/balancer.md).

    Read by `bin/mqlake balancer --config conf/balancer.toml`.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_BALANCER_")

    log: LogSettings = LogSettings()

    name: str = Field(
        default="balancer",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Name of the process, in its log and metrics.",
    )
    strategy: Strategy = Field(
        default="predicted",
        description='How new clients are placed. "weighted_cpu": in proportion to the free '
        'processor time of nodes. "predicted": by tenant and client identifier, where sessions '
        "are kept, with no node above its share.",
    )
    tenant: str = Field(
        default="default",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Tenant of clients whose frontend and SNI set no other; the same as for the "
        "gateways.",
    )
    slots: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Maximum number of nodes, which HAProxy declares in advance. A change "
        "requires new configuration files.",
    )
    max_connections: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of clients of one proxy.",
    )
    repair_seconds: float = Field(
        default=2.0,
        ge=0.05,
        le=3600,
        description="Interval at which each proxy is checked and, if its state differs, corrected.",
    )
    control_socket: Path = Field(
        default=Path("data/balancer/control.sock"),
        description="Unix socket of `bin/mqlake balancer status`, `drain` and `undrain`.",
    )
    state_file: Path = Field(
        default=Path("data/balancer/state.json"),
        description="File with the last valid snapshot, used at startup.",
    )

    discovery: DiscoverySettings = DiscoverySettings()
    weights: WeightSettings = WeightSettings()
    overload: NodeOverloadSettings = NodeOverloadSettings()
    probe: ProbeSettings = ProbeSettings()
    predicted: PredictedSettings = PredictedSettings()
    history: HistorySettings = HistorySettings()
    nodes: tuple[NodeSettings, ...] = Field(default=(), description="Static nodes.")
    proxies: tuple[ProxySettings, ...] = Field(default=(), description="HAProxy processes.")
    frontends: tuple[FrontendSettings, ...] = Field(
        default=(), description="Ports to which clients connect."
    )

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
        """Return the settings that are missing for placing any client."""
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
        """Return the tenants whose clients can be recognised."""
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

    def layout(self) -> ProxyLayout:
        return ProxyLayout(
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
