"""Settings of a federator; `conf/federation.toml` lists them all with their defaults."""

import ssl
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.errors import InvalidTopic
from mqlake.settings import (
    LogDiskSettings,
    LogSettings,
    ProcessSettings,
    SettingsGroup,
    TopicLevels,
)
from mqlake.topics.names import DEFAULT_MAX_LEVELS, validate_topic_filter

PORTS = {"mqtt": 1883, "mqtts": 8883}


def checked_uri(uri: str) -> str:
    """Return a URI that a link can go to, or raise `ValueError`."""
    parts = urlsplit(uri)
    if parts.scheme not in PORTS or not parts.hostname or parts.username or parts.path:
        raise ValueError("expected mqtt://host[:port] or mqtts://host[:port]")
    return uri


def checked_filters(filters: tuple[str, ...]) -> tuple[str, ...]:
    """Return filters whose topics can be federated, or raise `ValueError`."""
    for one in filters:
        try:
            validate_topic_filter(one)
        except InvalidTopic as exc:
            raise ValueError(f"{one!r}: {exc}") from exc
        if one.startswith("$"):
            raise ValueError(f"{one!r}: topics that begin with $ are not federated")
    return filters


Username = Annotated[str, Field(description="User to connect with.")]
Password = Annotated[SecretStr, Field(description="Password of that user.")]
Authorities = Annotated[
    Path | None,
    Field(
        description="PEM file of the authorities that sign the broker's certificate. Default: the "
        "system's.",
        examples=[Path("ca.pem")],
    ),
]
Certificate = Annotated[
    Path | None,
    Field(description="PEM file of a client certificate.", examples=[Path("client.pem")]),
]
Key = Annotated[
    Path | None, Field(description="PEM file of its private key.", examples=[Path("client.key")])
]


class BrokerSettings(SettingsGroup):
    """A broker: the site's own, or a neighbour's."""

    id: int = Field(
        ge=0,
        lt=1 << 32,
        description="Number of the site, unique in the federation.",
        examples=[1],
    )
    uri: str = Field(
        default="mqtt://127.0.0.1:1883",
        description="mqtt://host[:port], or mqtts:// for TLS.",
    )
    protocol: Literal["5.0", "3.1.1"] = Field(
        default="5.0",
        description="MQTT version that the broker and the federator of that site use.",
    )
    username: Username = ""
    password: Password = SecretStr("")
    ca_certificates: Authorities = None
    certificate: Certificate = None
    key: Key = None

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        return checked_uri(uri)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.uri)
        assert parts.hostname is not None
        return parts.hostname, parts.port or PORTS[parts.scheme]

    @property
    def is_secure(self) -> bool:
        return urlsplit(self.uri).scheme == "mqtts"

    def tls_context(self) -> ssl.SSLContext | None:
        """Return how a connection is secured, by the files as they are now; None without TLS."""
        if not self.is_secure:
            return None
        context = ssl.create_default_context(cafile=self.ca_certificates)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context

    @property
    def protocol_level(self) -> int:
        return 5 if self.protocol == "5.0" else 4


RATES: Final = (
    "messages_out_per_second",
    "bytes_out_per_second",
    "messages_in_per_second",
    "bytes_in_per_second",
)


class NeighborSettings(BrokerSettings):
    """A site that this one has a link to."""

    uri: str = Field(
        default="",
        description="mqtt://host[:port], or mqtts:// for TLS, such as "
        '"mqtts://broker.example:8883"; between logs, the address of its federator. Empty, '
        "between logs: it connects to this site.",
    )
    filters_out: tuple[str, ...] | None = Field(
        default=None,
        description="Between logs: topics to send to it. Default: those of the site.",
        examples=[("federated/#",)],
    )
    filters_in: tuple[str, ...] | None = Field(
        default=None,
        description="Between logs: topics to accept from it. Default: those of the site.",
        examples=[("federated/#",)],
    )

    messages_out_per_second: int = Field(
        default=0,
        ge=0,
        description="Between logs: messages per second sent to it; the burst is as large. 0: no "
        "limit.",
    )
    bytes_out_per_second: int = Field(
        default=0,
        ge=0,
        description="Likewise, bytes of topics and payloads.",
    )
    messages_in_per_second: int = Field(
        default=0,
        ge=0,
        description="Between logs: messages per second accepted from it; the burst is as large "
        "plus max_inflight. 0: no limit.",
    )
    bytes_in_per_second: int = Field(
        default=0,
        ge=0,
        description="Likewise, bytes of topics and payloads.",
    )

    @property
    def rates(self) -> dict[str, int]:
        """The rates of the link, by name."""
        return {name: getattr(self, name) for name in RATES}

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        return checked_uri(uri) if uri else uri

    @field_validator("filters_out", "filters_in")
    @classmethod
    def _check_filters(cls, filters: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if filters is None else checked_filters(filters)


class ListenSettings(SettingsGroup):
    """Address at which federators of neighbours connect, between logs."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on.",
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="TCP port. 0: do not listen.",
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM file of a certificate; neighbours then connect over TLS.",
        examples=[Path("site-1.pem")],
    )
    key: Path | None = Field(
        default=None,
        description="PEM file of its private key.",
        examples=[Path("site-1.key")],
    )

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self


class OverlaySettings(SettingsGroup):
    """How a site discovers neighbours, between brokers; disabled without a secret."""

    secret: SecretStr = Field(
        default=SecretStr(""),
        description="Secret shared by all sites that discover each other. Empty: this site has "
        "only the neighbours above.",
    )
    uri: str = Field(
        default="",
        description="URI at which other sites reach this site's broker, such as "
        '"mqtts://broker.example:8883"; required with a secret.',
    )
    least_links: int = Field(
        default=3,
        ge=1,
        le=64,
        description="Minimum number of links, including neighbours above.",
    )
    most_links: int = Field(
        default=6,
        ge=2,
        le=64,
        description="Maximum number of links.",
    )
    allow_uris: tuple[str, ...] = Field(
        default=(),
        description='Allowed URIs of discovered brokers, such as ["mqtts://*.example:8883"]. '
        "Empty: none; only seeds and neighbours are connected to.",
    )
    allow_sites: tuple[int, ...] = Field(
        default=(),
        description="Allowed numbers of discovered sites. Empty: any.",
    )
    max_sites: int = Field(
        default=256,
        ge=2,
        le=10_000,
        description="Maximum number of known sites.",
    )
    forget_seconds: float = Field(
        default=86_400.0,
        ge=60,
        description="A site that is silent for this time is forgotten.",
    )
    username: Username = ""
    password: Password = SecretStr("")
    ca_certificates: Authorities = None
    certificate: Certificate = None
    key: Key = None
    seeds: tuple[NeighborSettings, ...] = Field(
        default=(),
        description="Sites known from the start, with the keys of neighbors.",
    )

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        return checked_uri(uri) if uri else uri

    @field_validator("allow_uris")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_uri(one) for one in patterns)

    @property
    def finds(self) -> bool:
        """Tell whether neighbours are found."""
        return bool(self.secret.get_secret_value())

    def allows(self, site: int, uri: str) -> bool:
        """Tell whether there may be a link to a site that says that it is there."""
        if not uri or (self.allow_sites and site not in self.allow_sites):
            return False
        try:
            place = _place(checked_uri(uri))
        except ValueError:
            return False
        return any(
            scheme == place[0] and port == place[2] and fnmatchcase(place[1], host)
            for scheme, host, port in map(_place, self.allow_uris)
        )

    @model_validator(mode="after")
    def _check_links(self) -> Self:
        if self.least_links > self.most_links:
            raise ValueError("overlay: least_links is more than most_links")
        if not self.finds:
            return self
        if not self.uri:
            raise ValueError("overlay: uri is not set; others could not answer")
        if len({one.id for one in self.seeds}) < len(self.seeds):
            raise ValueError("overlay: two seeds have the same id")
        for one in self.seeds:
            if not one.uri:
                raise ValueError(f"overlay: seed {one.id} has no uri")
        return self


def _place(uri: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URI that was checked."""
    parts = urlsplit(uri)
    return parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme]


class PrefixSettings(SettingsGroup):
    """Another name for topics in the federation."""

    local: str = Field(
        default="",
        description='Prefix of the topic at the site\'s own broker, such as "sensors/".',
    )
    federated: str = Field(
        default="",
        description='Prefix for other sites, such as "federated/plant-a/": sensors/x here is '
        "federated/plant-a/x there.",
    )


class FederationSettings(ProcessSettings):
    """Settings of the federator of one site (docs/federation.md).

    Read by `bin/mqlake federation --config conf/federation.toml`.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_FEDERATION_")

    host: BrokerSettings = Field(
        default=BrokerSettings(id=1),
        description="This site, and its broker if there is no log.",
    )
    log: LogSettings | None = Field(
        default=None,
        description="The log of this mqlake site, through which it is federated. Without this "
        "table the site's broker is federated.",
    )
    log_disk: LogDiskSettings = LogDiskSettings()
    tenant: str = Field(
        default="default",
        description="With a log: tenant whose messages are federated.",
    )
    listen: ListenSettings = Field(
        default=ListenSettings(),
        description="With a log: where federators of neighbours connect.",
    )
    neighbors: tuple[NeighborSettings, ...] = Field(
        default=(),
        description="Sites that this site has links to; reloaded on SIGHUP.",
    )
    overlay: OverlaySettings = Field(
        default=OverlaySettings(),
        description="How this site discovers neighbours, between brokers.",
    )
    redundancy: int = Field(
        default=2,
        ge=1,
        le=16,
        description="Number of parents of a site in a mesh: paths towards its core.",
    )
    core_announcement_interval: float = Field(
        default=10.0,
        ge=1,
        le=3600,
        description="Seconds between announcements of a core. A core that is silent for three "
        "intervals is considered dead.",
    )
    core_patience: float = Field(
        default=2.0,
        gt=0,
        le=300,
        description="Seconds that a site which has lost its path to a core waits for an answer.",
    )
    beacon_interval: float = Field(
        default=5.0,
        ge=0.5,
        le=3600,
        description="Seconds between beacons. Subscribers and neighbours that are silent for "
        "three intervals are removed.",
    )
    order: Literal["origin", "none"] = Field(
        default="origin",
        description='"origin": messages of a site on one topic arrive in order and once, and '
        'missing ones are requested again. "none": in order of arrival, without duplicates among '
        "the last cache_size.",
    )
    cache_size: int = Field(
        default=5_000,
        ge=1,
        description='Identifiers remembered with order = "none": messages per second times the '
        "longest outage. A warning is logged when this is too small.",
    )
    hop_limit: int = Field(
        default=16,
        ge=1,
        le=255,
        description="Maximum number of sites that a message passes.",
    )
    filters_out: tuple[str, ...] = Field(
        default=("federated/#",),
        description="Topics of the site's own broker to send to others.",
    )
    filters_in: tuple[str, ...] = Field(
        default=("federated/#",),
        description="Topics to accept from others.",
    )
    interests: tuple[str, ...] = Field(
        default=(),
        description="Filters that always count as subscribed here, without beacons or "
        "subscriptions.",
    )
    prefixes: tuple[PrefixSettings, ...] = Field(
        default=(),
        description="Topic names in the federation that differ from local ones.",
    )
    control_prefix: str = Field(
        default="federator",
        pattern=r"^[A-Za-z0-9_-]+$",
        description="First level of the federators' control topics; the same at all sites.",
    )
    max_meshes: int = Field(
        default=256,
        ge=1,
        description="Maximum filters that this site requests; more are summarised.",
    )
    max_topics: int = Field(
        default=100_000,
        ge=1,
        description="Maximum pairs of origin and topic whose order is kept.",
    )
    store_seconds: float = Field(
        default=120.0,
        ge=1,
        le=86_400,
        description="Time for which messages can be requested again.",
    )
    store_messages: int = Field(
        default=20_000,
        ge=1,
        description="Maximum number of messages that can be requested again.",
    )
    store_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024,
        description="Maximum bytes of these messages.",
    )
    max_retained: int = Field(
        default=10_000,
        ge=0,
        description="Maximum topics whose latest retained message is known; between brokers it is "
        "kept for sites that connect later.",
    )
    max_topic_levels: TopicLevels = Field(
        default=DEFAULT_MAX_LEVELS,
        description="Between logs, maximum levels of a topic to accept from others, by its name "
        "at this site; as the gateways' max_topic_levels. Messages beyond it are refused.",
    )
    max_queued: int = Field(
        default=10_000,
        ge=1,
        description="Maximum number of packets queued for a broker; more are dropped.",
    )
    max_inflight: int = Field(
        default=1_000,
        ge=1,
        le=65_535,
        description="Maximum number of packets not yet acknowledged by a broker.",
    )
    max_packet_bytes: int = Field(
        default=1024 * 1024,
        ge=1024,
        le=64 * 1024 * 1024,
        description="Maximum packet size accepted.",
    )
    keep_alive_seconds: int = Field(
        default=5,
        ge=1,
        le=3600,
        description="A link is probed after this time without traffic.",
    )
    reconnect_max_seconds: float = Field(
        default=10.0,
        ge=0.1,
        le=3600,
        description="Maximum delay between attempts to reconnect.",
    )
    state_dir: Path | None = Field(
        default=None,
        description="Folder for state that survives a restart. Without it a restart forgets which "
        "messages were delivered.",
        examples=[Path("data/federation")],
    )

    @field_validator("filters_out", "filters_in", "interests")
    @classmethod
    def _check_filters(cls, filters: tuple[str, ...]) -> tuple[str, ...]:
        return checked_filters(filters)

    @model_validator(mode="after")
    def _check_neighbors(self) -> Self:
        if len({one.id for one in self.neighbors}) < len(self.neighbors):
            raise ValueError("neighbors: two have the same id")
        for one in self.neighbors:
            if one.id == self.host.id:
                raise ValueError(f"neighbors: {one.id} is the id of this site")
            if self.log is None and not one.uri:
                raise ValueError(f"neighbors: {one.id} has no uri")
            if self.log is not None and not one.password.get_secret_value():
                raise ValueError(
                    f"neighbors: {one.id} has no password; between logs both sites name the same"
                )
        return self._check_overlay()

    def _check_overlay(self) -> Self:
        if self.overlay.finds:
            if self.log is not None:
                raise ValueError("overlay: between logs neighbours are set, not found")
            if len(self.neighbors) > self.overlay.most_links:
                raise ValueError("overlay: there are more neighbors than most_links")
            if self.host.id in {one.id for one in self.overlay.seeds}:
                raise ValueError(f"overlay: seed {self.host.id} is this site")
        return self
