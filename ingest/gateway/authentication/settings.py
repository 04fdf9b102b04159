"""Who else is asked who a client is; `conf/gateway.toml` shows every key."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, SecretStr, Tag, model_validator

from mqlake.addresses import is_loopback
from mqlake.rights.model import RoleName
from mqlake.settings import PostgresSettings, SettingsGroup

CREDENTIALS: Final = "credentials"
"""Name of the users of `credentials_file` in a chain."""

ATTRIBUTE: Final = r"^[A-Za-z][A-Za-z0-9-]*$"
URL: Final = r"^https?://[^\s/?#@]+(/\S*)?$"


class NamingSettings(SettingsGroup):
    """What the users of one authenticator are called."""

    username_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._:@-]{0,32}$",
        description="put before the names of its users, so that none of them is taken for a user "
        "whom somebody else knows by the same name",
    )


class WebServerSettings(NamingSettings):
    """How a web server is reached."""

    timeout_seconds: float = Field(
        default=5.0, gt=0, le=60, description="without an answer by then the client is refused"
    )
    ca_certificates: Path | None = Field(
        default=None, description="PEM file of authorities to trust beside the machine's own"
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(), description="networks that are not public and may be reached all the same"
    )


class HttpAuthenticatorSettings(WebServerSettings):
    """A web server that is asked who a client is."""

    kind: Literal["http"] = "http"
    url: str = Field(
        pattern=URL,
        description="gets POST with what CONNECT says; https, unless it is an address of this "
        "machine",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="of each request, such as Authorization"
    )
    max_requests: int = Field(
        default=50, ge=1, le=1_000, description="at the same time; up to 1,000 further ones wait"
    )
    cache_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3_600,
        description="how long a client that was let in is not asked about again; 0: each time",
    )

    brings_rights: bool = Field(
        default=False,
        description="its answers may have roles, rules that allow and attributes, for which "
        "rights_file is needed; else these are not looked at",
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
    """Tokens that clients have as their passwords (RFC 7519), signed by somebody who is trusted."""

    kind: Literal["jwt"]
    algorithms: tuple[Algorithm, ...] = Field(
        min_length=1, description="by which a token may be signed, whatever it says itself"
    )
    secret_file: Path | None = Field(
        default=None,
        description="secrets for HS256, HS384 and HS512, one a line, as text or as base64:…; only "
        "its owner may read it",
    )
    public_key_file: Path | None = Field(
        default=None, description="public keys or certificates (PEM) for the other algorithms"
    )
    jwks_url: str | None = Field(
        default=None,
        pattern=URL,
        description="where the public keys are (JWKS, RFC 7517) for the other algorithms; https, "
        "unless it is an address of this machine",
    )
    cache_seconds: float = Field(
        default=300.0, ge=1, le=86_400, description="after which keys are fetched anew"
    )
    keep_seconds: float = Field(
        default=86_400.0,
        ge=0,
        le=30 * 86_400,
        description="how long keys count whose server does not answer any more",
    )
    refetch_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3_600,
        description="keys are fetched no sooner again, for a key that is not among them or after "
        "a failure",
    )
    issuer: str | None = Field(
        default=None,
        min_length=1,
        description="claim iss of the tokens; those of other issuers are passed on to whoever is "
        "next; needed with jwks_url",
    )
    audience: str | None = Field(
        default=None,
        min_length=1,
        description="has to be the claim aud of a token, or in it; needed with jwks_url",
    )
    leeway_seconds: float = Field(
        default=30.0, ge=0, le=600, description="by which other clocks may be wrong"
    )
    username_claim: str = Field(
        default="sub", min_length=1, description="claim that says who the client is"
    )
    roles_claim: str | None = Field(
        default=None,
        min_length=1,
        description="claim with roles (text, or a list), beside those of rights_file; a.b: member "
        "b of the claim a",
    )
    rights_claim: str | None = Field(
        default=None,
        min_length=1,
        description="claim with rules that allow (docs/rights.md), asked after those of "
        "rights_file",
    )
    attributes_claim: str | None = Field(
        default=None,
        min_length=1,
        description="claim with texts by name, for which %{name} stands in rules",
    )
    tenant_claim: str | None = Field(
        default=None,
        min_length=1,
        description="claim with the name of the tenant whose the client is; without it a token is "
        "for the tenant of the listener, and for none that the client chooses",
    )

    @property
    def brings_rights(self) -> bool:
        """Whether a login brings roles or rules along, for which `rights_file` is needed."""
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
    """A database that knows users and verifiers of their passwords."""

    query: str = Field(
        min_length=1,
        description="asked with the user name as $1; answers with one row at most: verifier (text, "
        "as in a credentials file) and perhaps roles (text[])",
    )
    timeout_seconds: float = Field(
        default=5.0, gt=0, le=60, description="without an answer by then the client is refused"
    )

    @property
    def brings_rights(self) -> bool:
        """Whether a login brings roles or rules along, for which `rights_file` is needed."""
        return False

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
    """A directory (LDAP) that knows users."""

    kind: Literal["ldap"]
    url: str = Field(
        pattern=r"^ldaps?://[^\s/?#@]+/?$",
        description="ldaps://host[:port]; ldap:// only with start_tls, or to an address of this "
        "machine",
    )
    start_tls: bool = Field(
        default=False,
        description="a connection by ldap:// goes on in TLS (StartTLS) before anything is asked; "
        "a directory that does not is not asked",
    )
    ca_certificates: Path | None = Field(
        default=None, description="PEM file of authorities to trust beside the machine's own"
    )
    bind_name: str | None = Field(
        default=None,
        min_length=1,
        description="distinguished name as which users are looked for; without it as nobody",
    )
    password: SecretStr | None = None
    password_file: Path | None = Field(default=None, description="read at each login")
    base: str = Field(min_length=1, description="distinguished name below which users are")
    user_attribute: str = Field(
        default="uid", pattern=ATTRIBUTE, description="that has the user's name"
    )
    user_class: str | None = Field(
        default=None, pattern=ATTRIBUTE, description="objectClass that users have"
    )
    roles_attribute: str = Field(
        default="memberOf", pattern=ATTRIBUTE, description="of a user, with names of groups"
    )
    roles: dict[RoleName, str] = Field(
        default_factory=dict, description="by role of rights_file: name of the group that has it"
    )
    max_connections: int = Field(
        default=16, ge=1, le=256, description="at the same time; up to 1,000 further clients wait"
    )
    timeout_seconds: float = Field(
        default=5.0, gt=0, le=60, description="without an answer by then the client is refused"
    )

    @property
    def brings_rights(self) -> bool:
        """Whether a login brings roles or rules along, for which `rights_file` is needed."""
        return bool(self.roles)

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
            raise ValueError("password is empty: a directory takes that for nobody")
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
    """Tell whether others can read and change what goes to and from there."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
