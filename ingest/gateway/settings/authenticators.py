"""Settings of authenticators beside the credentials file; `conf/gateway.toml` shows every key."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, SecretStr, Tag, model_validator

from mqlake.rights.grants import ATTRIBUTE_NAME
from mqlake.rights.model import RoleName
from mqlake.security.addresses import is_loopback
from mqlake.settings import PostgresSettings, SettingsGroup

CREDENTIALS: Final = "credentials"
"""Name of the users of `credentials_file` in a chain."""

ATTRIBUTE: Final = r"^[A-Za-z][A-Za-z0-9-]*$"
AttributeName = Annotated[str, Field(pattern=f"^{ATTRIBUTE_NAME.pattern}$")]
URL: Final = r"^https?://[^\s/?#@]+(/\S*)?$"


class NamingSettings(SettingsGroup):
    """Names of the users of one authenticator."""

    username_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._:@-]{0,32}$",
        description="Prefix of this authenticator's user names, to tell them from users of the "
        "same name of another authenticator. Only letters, digits and . _ : @ -.",
    )


class WebServerSettings(NamingSettings):
    """How to reach a web server."""

    timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Timeout for an answer; without one the client is refused.",
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities to trust in addition to the system's.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description='Non-public networks that may be reached, for example ["10.0.0.0/8"].',
    )


class HttpAuthenticatorSettings(WebServerSettings):
    """A web server that authenticates clients.

    It receives a POST with a JSON object (username, password, client_id, address, protocol_level)
    and answers 200 and {"result": "allow"}, "deny" or "next". "allow" may come with "username" (the
    client's user) and "expires_at" (seconds UTC at which its connection ends). After any other
    answer, or none, the client is refused (0x88, 3.x: 3), and the next of authenticate_by is not
    asked.
    """

    kind: Literal["http"] = "http"
    url: str = Field(
        pattern=URL,
        description="URL to send requests to; https, unless it is an address of this machine.",
        examples=["https://directory.example.org/who"],
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Headers of each request.",
        examples=[{"Authorization": "Bearer …"}],
    )
    max_requests: int = Field(
        default=50,
        ge=1,
        le=1_000,
        description="Maximum number of requests at the same time; up to 1,000 more wait.",
    )
    cache_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3_600,
        description="Time for which a client that was let in is not checked again. 0: always "
        "check.",
    )

    brings_rights: bool = Field(
        default=False,
        description='Whether answers may contain "roles", "rights" and "attributes" with "allow" '
        "(docs/rights.md); requires rights_file.",
    )

    @model_validator(mode="after")
    def _passwords_are_not_readable(self) -> Self:
        if _is_readable(self.url):
            raise ValueError(
                f"url is {self.url!r}: passwords would go to another machine in the clear, "
                "expected https"
            )
        return self


Algorithm = Literal[
    "HS256",
    "HS384",
    "HS512",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
]


class JwtAuthenticatorSettings(WebServerSettings):
    """Tokens (JWT, RFC 7519) that clients send as their passwords.

    The user name of CONNECT is ignored. A password that is not a token is passed on to the next of
    authenticate_by. A token needs exp; the connection ends leeway_seconds after that time.
    """

    kind: Literal["jwt"]
    algorithms: tuple[Algorithm, ...] = Field(
        min_length=1,
        description="Signature algorithms to accept, regardless of the token's own header: HS256, "
        "HS384, HS512 with secret_file; RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, "
        "ES512 with public_key_file or jwks_url.",
        examples=[("ES256",)],
    )
    secret_file: Path | None = Field(
        default=None,
        description="File of secrets, one per line, as text or as base64:…; readable only by its "
        "owner. Set this, public_key_file or jwks_url. Files are reloaded on SIGHUP.",
        examples=[Path("/etc/mqlake/token-secrets")],
    )
    public_key_file: Path | None = Field(
        default=None,
        description="Public keys or certificates (PEM).",
        examples=[Path("/etc/mqlake/token-keys.pem")],
    )
    jwks_url: str | None = Field(
        default=None,
        pattern=URL,
        description="URL of the public keys (JWKS); https, unless it is an address of this "
        "machine.",
        examples=["https://id.example.org/.well-known/jwks.json"],
    )
    cache_seconds: float = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="Interval at which keys are fetched again; also fetched for an unknown key.",
    )
    keep_seconds: float = Field(
        default=86_400.0,
        ge=0,
        le=30 * 86_400,
        description="Time for which keys remain valid while their server does not answer.",
    )
    refetch_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3_600,
        description="Minimum delay before keys are fetched again for an unknown key or after a "
        "failure.",
    )
    issuer: str | None = Field(
        default=None,
        min_length=1,
        description="Claim iss of the tokens; required with jwks_url, whose keys also sign tokens "
        "for others. Tokens of other issuers are passed on to the next of authenticate_by.",
        examples=["https://id.example.org"],
    )
    audience: str | None = Field(
        default=None,
        min_length=1,
        description="Claim aud of the tokens, or a member of it; required with jwks_url.",
        examples=["mqtt"],
    )
    leeway_seconds: float = Field(
        default=30.0,
        ge=0,
        le=600,
        description="Tolerated difference between clocks.",
    )
    username_claim: str = Field(
        default="sub",
        min_length=1,
        description="Claim with the user name; a.b is the member b of the claim a.",
    )
    roles_claim: str | None = Field(
        default=None,
        min_length=1,
        description="Claim with roles (text, or a list), in addition to those of rights_file "
        "(docs/rights.md); requires rights_file.",
        examples=["realm_access.roles"],
    )
    rights_claim: str | None = Field(
        default=None,
        min_length=1,
        description="Claim with rules that allow, evaluated after those of rights_file; requires "
        "rights_file.",
        examples=["mqtt_rights"],
    )
    attributes_claim: str | None = Field(
        default=None,
        min_length=1,
        description="Claim with texts by name, which replace %{name} in rules; requires "
        "rights_file.",
        examples=["mqtt_attributes"],
    )
    tenant_claim: str | None = Field(
        default=None,
        min_length=1,
        description="Claim with the tenant of the client (docs/tenants.md). Without it a token is "
        "valid for the tenant of the listener, and for no tenant that the client chooses.",
        examples=["org"],
    )

    @property
    def brings_rights(self) -> bool:
        """Tell whether a login brings roles or rules along, for which `rights_file` is needed."""
        return any((self.roles_claim, self.rights_claim, self.attributes_claim))

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        places = ("secret_file", "public_key_file", "jwks_url")
        given = [place for place in places if getattr(self, place) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given) or 'no key'} given, expected one of {', '.join(places)}"
            )
        # Else a public key could be used as a secret, which it is not.
        kinds = {algorithm.startswith("HS") for algorithm in self.algorithms}
        if kinds != {self.secret_file is not None}:
            wanted = "HS256, HS384, HS512" if self.secret_file else "RS…, PS…, ES…"
            raise ValueError(
                f"algorithms are {', '.join(self.algorithms)}, expected with {given[0]}: {wanted}"
            )
        return self

    @model_validator(mode="after")
    def _others_of_the_issuer_stay_out(self) -> Self:
        if self.jwks_url is None:
            return self
        if _is_readable(self.jwks_url):
            raise ValueError(
                f"jwks_url is {self.jwks_url!r}: anybody on the way could give keys of his own, "
                "expected https"
            )
        if self.issuer is None or self.audience is None:
            raise ValueError(
                "issuer and audience are needed with jwks_url: its keys sign tokens for other "
                "services, too"
            )
        return self


class PostgresAuthenticatorSettings(NamingSettings, PostgresSettings):
    """A PostgreSQL database with users and password verifiers.

    Passwords are not sent to it. Without a row the client is passed on to the next of
    authenticate_by. A database on another machine must be verified: tls = "verify-full", and
    ca_certificates such as /etc/ssl/certs/ca-certificates.crt.
    """

    query: str = Field(
        min_length=1,
        description="Query with the user name as $1, run in a read-only transaction. It returns "
        "at most one row: verifier (text, as in a credentials file: SCRAM-SHA-256$… or "
        "$argon2id$…) and optionally roles (text[], in addition to those of rights_file), rights "
        "and attributes (json).",
        examples=["SELECT verifier, roles FROM mqtt_users WHERE name = $1"],
    )
    brings_rights: bool = Field(
        default=False,
        description="Whether to use rights (rules that allow) and attributes in answers, which "
        "requires rights_file; otherwise they are ignored.",
    )
    timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Timeout for an answer; without one the client is refused.",
    )

    @model_validator(mode="after")
    def _is_who_it_says(self) -> Self:
        if self.host.startswith("/") or is_loopback(self.host):
            return self
        if self.tls not in {"verify-ca", "verify-full"} or self.ca_certificates is None:
            raise ValueError(
                f"host is {self.host!r}: another machine could say in its place who may log in, "
                'expected tls = "verify-full" and ca_certificates'
            )
        return self


class LdapAuthenticatorSettings(NamingSettings):
    """A directory (LDAP) with users.

    The user is the entry below base whose user_attribute is the user name; the password is correct
    if the directory accepts it for a bind with that entry. Without such an entry the client is
    passed on to the next of authenticate_by. Referrals are not followed.
    """

    kind: Literal["ldap"]
    url: str = Field(
        pattern=r"^ldaps?://[^\s/?#@]+/?$",
        description="ldaps://host[:port]. ldap:// only with start_tls, or to an address of this "
        "machine.",
        examples=["ldaps://ldap.example.org:636"],
    )
    start_tls: bool = Field(
        default=False,
        description="Whether a connection over ldap:// switches to TLS (StartTLS) before any "
        "request; url may then be of another machine.",
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities to trust in addition to the system's.",
        examples=[Path("/etc/mqlake/ldap-ca.pem")],
    )
    bind_name: str | None = Field(
        default=None,
        min_length=1,
        description="Distinguished name to search users with. Without it the search is anonymous.",
        examples=["cn=mqlake,ou=services,dc=example,dc=org"],
    )
    password: SecretStr | None = Field(
        default=None,
        description="Password of bind_name: set this or password_file.",
        examples=["…"],
    )
    password_file: Path | None = Field(
        default=None,
        description="File with that password, read at each login.",
        examples=[Path("/etc/mqlake/ldap-password")],
    )
    base: str = Field(
        min_length=1,
        description="Distinguished name below which users are searched.",
        examples=["ou=people,dc=example,dc=org"],
    )
    user_attribute: str = Field(
        default="uid",
        pattern=ATTRIBUTE,
        description="Attribute with the user's name. Active Directory: sAMAccountName.",
    )
    user_class: str | None = Field(
        default=None,
        pattern=ATTRIBUTE,
        description="objectClass of users. Active Directory: user.",
        examples=["inetOrgPerson"],
    )
    roles_attribute: str = Field(
        default="memberOf",
        pattern=ATTRIBUTE,
        description="Attribute of a user with the names of its groups.",
    )
    roles: dict[RoleName, str] = Field(
        default_factory=dict,
        description="Group for each role of rights_file (docs/rights.md), as the full name in "
        "roles_attribute; not case-sensitive.",
        examples=[{"operators": "cn=operators,ou=groups,dc=example,dc=org"}],
    )
    rights_attribute: str | None = Field(
        default=None,
        pattern=ATTRIBUTE,
        description="Attribute of a user, each value of which is a rule that allows, as JSON "
        "(docs/rights.md).",
        examples=["mqttRight"],
    )
    attributes: dict[AttributeName, Annotated[str, Field(pattern=ATTRIBUTE)]] = Field(
        default_factory=dict,
        description="Attribute of a user for each name in %{name}, with at most one value.",
        examples=[{"site": "l"}],
    )
    max_connections: int = Field(
        default=16,
        ge=1,
        le=256,
        description="Maximum number of connections, one for each login; up to 1,000 more clients "
        "wait.",
    )
    timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Timeout for an answer; without one the client is refused.",
    )

    @property
    def brings_rights(self) -> bool:
        """Tell whether a login brings roles or rules along, for which `rights_file` is needed."""
        return bool(self.roles or self.rights_attribute or self.attributes)

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "ldaps"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (636 if self.is_tls else 389)

    def read_password(self) -> str:
        """Return the password of `bind_name`.

        Raises:
            OSError: Its file cannot be read.
        """
        if self.password_file is not None:
            return self.password_file.read_text(encoding="utf-8").strip()
        assert self.password is not None
        return self.password.get_secret_value()

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if self.start_tls and self.is_tls:
            raise ValueError(f"url is {self.url!r}: with start_tls expected ldap://")
        if not (self.is_tls or self.start_tls or is_loopback(self.host)):
            raise ValueError(
                f"url is {self.url!r}: passwords would go to another machine in the clear, "
                "expected ldaps, or start_tls"
            )
        given = [one for one in (self.password, self.password_file) if one is not None]
        if len(given) != (self.bind_name is not None):
            raise ValueError(
                "bind_name needs either password or password_file, and they need bind_name"
            )
        if self.password is not None and not self.password.get_secret_value():
            raise ValueError("password is empty: LDAP would treat this as an anonymous bind")
        return self


def _kind(found: Any) -> Any:
    return found.get("kind", "http") if isinstance(found, dict) else found.kind


AuthenticatorSettings = Annotated[
    Annotated[HttpAuthenticatorSettings, Tag("http")]
    | Annotated[JwtAuthenticatorSettings, Tag("jwt")]
    | Annotated[PostgresAuthenticatorSettings, Tag("postgresql")]
    | Annotated[LdapAuthenticatorSettings, Tag("ldap")],
    Discriminator(_kind),
]


def _is_readable(url: str) -> bool:
    """Tell whether others can read and change requests and answers."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
