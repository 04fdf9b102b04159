"""Settings of a federator; `conf/federation.toml` lists them all with their defaults."""

import ssl
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.errors import InvalidTopic
from mqlake.settings import LogSettings, ProcessSettings, SettingsGroup
from mqlake.topics import validate_topic_filter

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


class BrokerSettings(SettingsGroup):
    """A broker: that of this site, or that of a neighbour."""

    id: int = Field(ge=0, lt=1 << 32, description="of its site; unique in the federation")
    uri: str = Field(
        default="mqtt://127.0.0.1:1883", description="mqtt://host[:port], or mqtts:// for TLS"
    )
    protocol: Literal["5.0", "3.1.1"] = Field(
        default="5.0", description="of MQTT that broker and federator of that site speak"
    )
    username: str = Field(default="", description="with whom to connect")
    password: SecretStr = Field(default=SecretStr(""), description="of that user")
    ca_certificates: Path | None = Field(
        default=None, description="PEM file that a TLS broker is checked by; else the system's"
    )
    certificate: Path | None = Field(default=None, description="PEM file of a client certificate")
    key: Path | None = Field(default=None, description="PEM file of its private key")

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
        description="mqtt://host[:port], or mqtts:// for TLS; between logs that of its federator, "
        "without one it connects to this site",
    )
    filters_out: tuple[str, ...] | None = Field(
        default=None, description="between logs: what it may get; without these as the site's"
    )
    filters_in: tuple[str, ...] | None = Field(
        default=None, description="between logs: what it may bring; without these as the site's"
    )

    messages_out_per_second: int = Field(
        default=0, ge=0, description="between logs: that it is sent, as many at once; 0: any number"
    )
    bytes_out_per_second: int = Field(
        default=0, ge=0, description="between logs: of topics and payloads, likewise"
    )
    messages_in_per_second: int = Field(
        default=0,
        ge=0,
        description="between logs: that it brings, max_inflight and as many at once; 0: any number",
    )
    bytes_in_per_second: int = Field(
        default=0, ge=0, description="between logs: of topics and payloads, likewise"
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
    """Where federators of neighbours connect, between logs."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=0, ge=0, le=65535, description="TCP port; 0: nobody connects here")
    certificate: Path | None = Field(default=None, description="PEM file: links come by TLS then")
    key: Path | None = Field(default=None, description="PEM file of its private key")

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self


class OverlaySettings(SettingsGroup):
    """How a site finds neighbours by itself, between brokers; without a secret it does not."""

    secret: SecretStr = Field(
        default=SecretStr(""),
        description="that all sites know which find each other; without one nothing is found",
    )
    uri: str = Field(default="", description="where other sites reach this site's broker")
    least_links: int = Field(
        default=3, ge=1, le=64, description="links that a site wants, set ones included"
    )
    most_links: int = Field(default=6, ge=2, le=64, description="links that it has at most")
    allow_uris: tuple[str, ...] = Field(
        default=(),
        description="where brokers may be that others tell of, mqtts://*.example:8883; without "
        "these nowhere: only seeds and neighbours are connected to",
    )
    allow_sites: tuple[int, ...] = Field(
        default=(), description="ids that these may have; without these any"
    )
    max_sites: int = Field(default=256, ge=2, le=10_000, description="sites that are known")
    forget_seconds: float = Field(
        default=86_400.0, ge=60, description="a site unheard for longer is known no more"
    )
    username: str = Field(default="", description="with whom to connect to brokers that were found")
    password: SecretStr = Field(default=SecretStr(""), description="of that user")
    ca_certificates: Path | None = Field(
        default=None, description="PEM file that these are checked by; else the system's"
    )
    certificate: Path | None = Field(default=None, description="PEM file of a client certificate")
    key: Path | None = Field(default=None, description="PEM file of its private key")
    seeds: tuple[NeighborSettings, ...] = Field(
        default=(), description="sites that are known from the start, with the keys of neighbors"
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
        """Whether neighbours are found."""
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
    """Topics that have another name in the federation."""

    local: str = Field(default="", description="beginning of the topic at the own broker")
    federated: str = Field(default="", description="its name for other sites")


class FederationSettings(ProcessSettings):
    """One site's federator: its broker, its neighbours, what crosses."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_FEDERATION_")

    host: BrokerSettings = Field(
        default=BrokerSettings(id=1), description="this site, and its broker without a log"
    )
    log: LogSettings | None = Field(
        default=None,
        description="the log of this mqlake site: it is federated through that; without one the "
        "site's broker is",
    )
    tenant: str = Field(
        default="default", description="with a log: the tenant whose messages are federated"
    )
    listen: ListenSettings = Field(
        default=ListenSettings(), description="with a log: where neighbours connect"
    )
    neighbors: tuple[NeighborSettings, ...] = Field(
        default=(), description="the sites that this one has links to; read again at SIGHUP"
    )
    overlay: OverlaySettings = Field(
        default=OverlaySettings(), description="how neighbours are found, between brokers"
    )
    redundancy: int = Field(
        default=2, ge=1, le=16, description="parents of a site in a mesh: paths towards its core"
    )
    core_announcement_interval: float = Field(
        default=10.0, ge=1, le=3600, description="seconds; a core unheard for three is none"
    )
    core_patience: float = Field(
        default=2.0,
        gt=0,
        le=300,
        description="seconds that a site which has lost its way to a core waits for an answer",
    )
    beacon_interval: float = Field(
        default=5.0,
        ge=0.5,
        le=3600,
        description="seconds; subscribers and neighbours unheard for three are none",
    )
    order: Literal["origin", "none"] = Field(
        default="origin",
        description="origin: each site's messages of a topic come in its order, each once, missing "
        "ones are fetched; none: as they come, duplicates found among the last cache_size",
    )
    cache_size: int = Field(
        default=5_000,
        ge=1,
        description="identifiers remembered with order = none: rate times longest outage",
    )
    hop_limit: int = Field(default=16, ge=1, le=255, description="sites that a message may pass")
    filters_out: tuple[str, ...] = Field(
        default=("federated/#",), description="topics of the own broker that others may get"
    )
    filters_in: tuple[str, ...] = Field(
        default=("federated/#",), description="topics that others may bring here"
    )
    interests: tuple[str, ...] = Field(
        default=(),
        description="filters that always have subscribers here, without beacons or subscriptions",
    )
    prefixes: tuple[PrefixSettings, ...] = Field(
        default=(), description="other names for topics in the federation"
    )
    control_prefix: str = Field(
        default="federator",
        pattern=r"^[A-Za-z0-9_-]+$",
        description="first level of the topics by which federators speak; the same at all sites",
    )
    max_meshes: int = Field(
        default=256, ge=1, description="filters that this site asks for; more are summarised"
    )
    max_topics: int = Field(
        default=100_000, ge=1, description="pairs of origin and topic whose order is kept"
    )
    store_seconds: float = Field(
        default=120.0, ge=1, le=86_400, description="how long messages can be fetched again"
    )
    store_messages: int = Field(default=20_000, ge=1, description="how many")
    store_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, description="bytes of these")
    max_retained: int = Field(
        default=10_000,
        ge=0,
        description="topics whose latest retained message is known; between brokers "
        "it is kept for sites that come later",
    )
    max_queued: int = Field(
        default=10_000, ge=1, description="packets waiting for a broker; further ones are dropped"
    )
    max_inflight: int = Field(
        default=1_000, ge=1, le=65_535, description="packets that a broker has not acknowledged"
    )
    max_packet_bytes: int = Field(
        default=1024 * 1024, ge=1024, le=64 * 1024 * 1024, description="largest packet taken"
    )
    keep_alive_seconds: int = Field(
        default=5, ge=1, le=3600, description="a link that is silent for longer is probed"
    )
    reconnect_max_seconds: float = Field(
        default=10.0, ge=0.1, le=3600, description="longest wait between two tries to connect"
    )
    state_dir: Path | None = Field(
        default=None,
        description="folder for what outlives the process; without one a restart forgets what its "
        "subscribers have had",
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
