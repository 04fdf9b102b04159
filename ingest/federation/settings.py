"""Settings of a federator; `conf/federation.toml` lists them all with their defaults."""

import ssl
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal, Self
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


Username = Annotated[str, Field(description="User with which to connect.")]
Password = Annotated[SecretStr, Field(description="Password of that user.")]
Authorities = Annotated[
    Path | None,
    Field(
        description="PEM file of the authorities that sign the broker's certificate. Without "
        "it those of the system.",
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
    """A broker: that of this site, or that of a neighbour."""

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
        description="Version of MQTT that the broker and the federator of that site speak.",
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
        '"mqtts://broker.example:8883"; between logs that of its federator. Empty, between '
        "logs: it connects to this site.",
    )
    filters_out: tuple[str, ...] | None = Field(
        default=None,
        description="Between logs: topics that it may get. Without these those of the site.",
        examples=[("federated/#",)],
    )
    filters_in: tuple[str, ...] | None = Field(
        default=None,
        description="Between logs: topics that it may bring. Without these those of the site.",
        examples=[("federated/#",)],
    )

    messages_out_per_second: int = Field(
        default=0,
        ge=0,
        description="Between logs: messages that it is sent, as many at once. 0: any number.",
    )
    bytes_out_per_second: int = Field(
        default=0,
        ge=0,
        description="Likewise bytes of topics and payloads.",
    )
    messages_in_per_second: int = Field(
        default=0,
        ge=0,
        description="Between logs: messages that it brings, max_inflight and as many at once. "
        "0: any number.",
    )
    bytes_in_per_second: int = Field(
        default=0,
        ge=0,
        description="Likewise bytes of topics and payloads.",
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

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on.",
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="TCP port. 0: nobody connects here.",
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM file of a certificate; neighbours come by TLS then.",
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
    """How a site finds neighbours by itself, between brokers; without a secret it does not."""

    secret: SecretStr = Field(
        default=SecretStr(""),
        description="Secret, the same at all sites that find each other. Empty: this site has "
        "only the neighbours above.",
    )
    uri: str = Field(
        default="",
        description="Where other sites reach this site's broker, such as "
        '"mqtts://broker.example:8883"; needed with a secret.',
    )
    least_links: int = Field(
        default=3,
        ge=1,
        le=64,
        description="Links that this site wants, neighbours above included.",
    )
    most_links: int = Field(
        default=6,
        ge=2,
        le=64,
        description="Links that it has at most.",
    )
    allow_uris: tuple[str, ...] = Field(
        default=(),
        description="Where brokers may be that others tell of, such as "
        '["mqtts://*.example:8883"]. Empty: nowhere; only seeds and neighbours are connected '
        "to.",
    )
    allow_sites: tuple[int, ...] = Field(
        default=(),
        description="Numbers that these sites may have. Empty: any.",
    )
    max_sites: int = Field(
        default=256,
        ge=2,
        le=10_000,
        description="Sites that are known.",
    )
    forget_seconds: float = Field(
        default=86_400.0,
        ge=60,
        description="A site that is silent for longer is known no more.",
    )
    username: Username = ""
    password: Password = SecretStr("")
    ca_certificates: Authorities = None
    certificate: Certificate = None
    key: Key = None
    seeds: tuple[NeighborSettings, ...] = Field(
        default=(),
        description="Sites that are known from the start, with the keys of neighbors.",
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
    """Another name for topics in the federation."""

    local: str = Field(
        default="",
        description='Beginning of the topic at the own broker, such as "sensors/".',
    )
    federated: str = Field(
        default="",
        description='Its name for other sites, such as "federated/plant-a/": sensors/x here '
        "is federated/plant-a/x for others.",
    )


class FederationSettings(ProcessSettings):
    """Settings of the federator of one site (docs/federation.md).

    Read by `bin/mqlake federation --config conf/federation.toml`.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_FEDERATION_")

    host: BrokerSettings = Field(
        default=BrokerSettings(id=1),
        description="This site, and without a log its broker.",
    )
    log: LogSettings | None = Field(
        default=None,
        description="The log of this mqlake site: it is federated through that. Without this "
        "table the site's broker is.",
    )
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
        description="Sites that this one has links to; read again at SIGHUP.",
    )
    overlay: OverlaySettings = Field(
        default=OverlaySettings(),
        description="How this site finds neighbours by itself, between brokers.",
    )
    redundancy: int = Field(
        default=2,
        ge=1,
        le=16,
        description="Parents of a site in a mesh: paths towards its core.",
    )
    core_announcement_interval: float = Field(
        default=10.0,
        ge=1,
        le=3600,
        description="Seconds between two announcements of a core. A core that is silent for "
        "three is gone.",
    )
    core_patience: float = Field(
        default=2.0,
        gt=0,
        le=300,
        description="Seconds that a site which has lost its way to a core waits for an answer.",
    )
    beacon_interval: float = Field(
        default=5.0,
        ge=0.5,
        le=3600,
        description="Seconds between two beacons. Subscribers and neighbours that are silent "
        "for three are gone.",
    )
    order: Literal["origin", "none"] = Field(
        default="origin",
        description='"origin": each site\'s messages of a topic come in its order, each once, '
        'and missing ones are fetched. "none": as they come, without those among the last '
        "cache_size.",
    )
    cache_size: int = Field(
        default=5_000,
        ge=1,
        description='Identifiers remembered with order = "none": messages a second times '
        "longest outage. Measured, and warned about when it is less.",
    )
    hop_limit: int = Field(
        default=16,
        ge=1,
        le=255,
        description="Sites that a message may pass.",
    )
    filters_out: tuple[str, ...] = Field(
        default=("federated/#",),
        description="Topics of the own broker that others may get.",
    )
    filters_in: tuple[str, ...] = Field(
        default=("federated/#",),
        description="Topics that others may bring here.",
    )
    interests: tuple[str, ...] = Field(
        default=(),
        description="Filters that always have subscribers here, without beacons or subscriptions.",
    )
    prefixes: tuple[PrefixSettings, ...] = Field(
        default=(),
        description="Other names for topics in the federation.",
    )
    control_prefix: str = Field(
        default="federator",
        pattern=r"^[A-Za-z0-9_-]+$",
        description="First level of the federators' own topics; the same at all sites.",
    )
    max_meshes: int = Field(
        default=256,
        ge=1,
        description="Filters that this site asks for; more are summarised.",
    )
    max_topics: int = Field(
        default=100_000,
        ge=1,
        description="Pairs of origin and topic whose order is kept.",
    )
    store_seconds: float = Field(
        default=120.0,
        ge=1,
        le=86_400,
        description="Messages can be fetched again for so long.",
    )
    store_messages: int = Field(
        default=20_000,
        ge=1,
        description="Most messages that can be fetched again.",
    )
    store_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024,
        description="Most bytes of these.",
    )
    max_retained: int = Field(
        default=10_000,
        ge=0,
        description="Topics whose latest retained message is known; between brokers it is "
        "kept for sites that come later.",
    )
    max_queued: int = Field(
        default=10_000,
        ge=1,
        description="Packets that wait for a broker; further ones are dropped.",
    )
    max_inflight: int = Field(
        default=1_000,
        ge=1,
        le=65_535,
        description="Packets that a broker has not acknowledged.",
    )
    max_packet_bytes: int = Field(
        default=1024 * 1024,
        ge=1024,
        le=64 * 1024 * 1024,
        description="Largest packet that is taken.",
    )
    keep_alive_seconds: int = Field(
        default=5,
        ge=1,
        le=3600,
        description="A link that is silent for longer is probed.",
    )
    reconnect_max_seconds: float = Field(
        default=10.0,
        ge=0.1,
        le=3600,
        description="Longest wait between two tries to connect.",
    )
    state_dir: Path | None = Field(
        default=None,
        description="Folder for the state that outlives the process. Without it a restart "
        "forgets what was delivered.",
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
