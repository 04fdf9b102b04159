"""How a client is let in by the log: protocol, login and trusted authorities, in a file of its own.

The file is TOML, for its owner alone:

    protocol = "SASL_SSL"
    mechanism = "SCRAM-SHA-512"
    username = "mqlake"
    password = "…"
    ca_certificates = "/etc/mqlake/kafka-ca.pem"

`bin/mqlake up` writes one for the log that it starts, `<data-dir>/log-security.toml`. Environment,
arguments and state of processes have its path alone.
"""

import os
import secrets
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

from mqlake.durable import write_durably
from mqlake.errors import SettingsError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MECHANISMS: Final = tuple(_LOGIN_MODULES)
GENERATED_MECHANISM: Final = "SCRAM-SHA-512"
"""Neither side of it sends a secret that would let another client in, not even to a process that
listens in place of a log that does not run."""
GENERATED_USERNAME: Final = "mqlake"
_MOST_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Content of a file of TLS settings.

    Attributes:
        ca_certificates: PEM; without it those of the machine.
        certificate: PEM, with which a client proves its identity; with its chain.
        key: PEM, of the certificate.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_certificates: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _one_of("protocol", self.protocol, PROTOCOLS)
        if self.has_login:
            _one_of("mechanism", self.mechanism, MECHANISMS)
            if not (self.username and self.password):
                raise SettingsError(f"{self.protocol} needs username and password")
        elif self.mechanism or self.username or self.password:
            raise SettingsError(f"{self.protocol} has no login: expected a protocol with SASL")
        if not self.has_tls and (self.ca_certificates or self.certificate or self.key):
            raise SettingsError(f"{self.protocol} has no TLS: expected SSL or SASL_SSL")
        if bool(self.certificate) != bool(self.key):
            raise SettingsError("certificate and key go together")

    @property
    def has_login(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def to_toml(self) -> str:
        """Return the content of a file that says this."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return "".join(f"{name} = {_quoted(value)}\n" for name, value in values.items() if value)

    def of_librdkafka(self) -> dict[str, str]:
        """Return the options of a client of librdkafka."""
        options = {"security.protocol": self.protocol}
        if self.has_login:
            options |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        named = {
            "ssl.ca.location": self.ca_certificates,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "ssl.key.password": self.key_password,
        }
        return options | {name: value for name, value in named.items() if value}

    def of_java(self) -> dict[str, str]:
        """Return the options of one of Kafka's own clients.

        Raises:
            SettingsError: A certificate cannot be read: Java is given the text.
        """
        options = {"security.protocol": self.protocol}
        if self.has_login:
            options |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self.jaas()}
        if self.ca_certificates:
            options |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": _text(Path(self.ca_certificates)),
            }
        if self.certificate:
            options |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": _text(Path(self.certificate)),
                "ssl.keystore.key": _text(Path(self.key)),
            }
        if self.key_password:
            options["ssl.key.password"] = self.key_password
        return options

    def jaas(self) -> str:
        """Return the login as Java configures logins; for a server too that takes it."""
        module = _LOGIN_MODULES[self.mechanism]
        login = f"username={_quoted(self.username)} password={_quoted(self.password)}"
        return f"{module} required {login};"


class LogServers(str):
    """Bootstrap servers of a log, host:port[,host:port…], and the file that says how one is let in.

    Wherever the address alone is wanted it is that text.

    Attributes:
        security_file: None: the log has no login.
    """

    security_file: Path | None

    def __new__(cls, servers: str, security_file: Path | None = None) -> Self:
        made = super().__new__(cls, servers)
        made.security_file = security_file
        return made

    @property
    def security(self) -> ClientSecurity:
        """The content of the file now.

        Raises:
            SettingsError: It cannot be read.
        """
        return ClientSecurity() if self.security_file is None else read_security(self.security_file)


def environment_of(servers: str, process: str) -> dict[str, str]:
    """Return the variables that tell a process of ours (`gateway`) where the log is."""
    prefix = f"MQLAKE_{process.upper()}_LOG__"
    environment = {f"{prefix}BOOTSTRAP_SERVERS": str(servers)}
    if isinstance(servers, LogServers) and servers.security_file is not None:
        environment[f"{prefix}SECURITY_FILE"] = str(servers.security_file)
    return environment


def client_config(servers: str) -> dict[str, Any]:
    """Return how a client of librdkafka reaches a log and is let in.

    Args:
        servers: Bootstrap servers, with their security file if they have one.

    Raises:
        SettingsError: The security file cannot be read.
    """
    return {"bootstrap.servers": str(servers), **security_of(servers).of_librdkafka()}


def java_client_config(servers: str) -> dict[str, str]:
    """Return the configuration of one of Kafka's own clients."""
    return {"bootstrap.servers": str(servers), **security_of(servers).of_java()}


def security_of(servers: str) -> ClientSecurity:
    """Return the login of a log; a plain text has none."""
    return servers.security if isinstance(servers, LogServers) else ClientSecurity()


def read_security(path: Path) -> ClientSecurity:
    """Read a security file.

    Raises:
        SettingsError: It is not there, others may write it, or its content is not as expected.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            values = tomllib.loads(file.read(_MOST_BYTES).decode())
    except OSError as exc:
        raise SettingsError(f"security file of the log {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"security file of the log {path} is not TOML") from exc
    if mode & 0o022:
        raise SettingsError(
            f"others may write the security file of the log {path}: run chmod go-w {path}"
        )
    known = {one.name for one in fields(ClientSecurity)}
    for name, value in values.items():
        if name not in known or not isinstance(value, str):
            raise SettingsError(
                f"security file of the log {path}: {name} is not expected there, or is no text; "
                f"expected {', '.join(sorted(known))}"
            )
    try:
        return ClientSecurity(**values)
    except SettingsError as exc:
        raise SettingsError(f"security file of the log {path}: {exc}") from exc


def ensure_security(path: Path) -> ClientSecurity:
    """Return how one is let in by the embedded log; made up and written at the first call."""
    if path.exists():
        return read_security(path)
    security = ClientSecurity(
        "SASL_PLAINTEXT", GENERATED_MECHANISM, GENERATED_USERNAME, secrets.token_urlsafe(32)
    )
    write_durably(path, security.to_toml().encode(), mode=0o600)
    return security


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingsError(f"{name}: expected one of {', '.join(known)}, got {value!r}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the log's certificate {path} cannot be read: {exc}") from exc
