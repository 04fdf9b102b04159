import copy
import pickle
import stat
from pathlib import Path

import pytest

from mqlake.errors import SettingsError
from mqlake.log.security import (
    ClientSecurity,
    LogServers,
    client_config,
    ensure_security,
    environment_of,
    java_client_config,
    read_security,
)
from mqlake.settings import LogSettings

SERVERS = "127.0.0.1:9092,127.0.0.1:9093"


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "log-security.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_generated_login_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "log-security.toml"
    made = ensure_security(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_security(path) == read_security(path) == made
    assert made.mechanism == "SCRAM-SHA-512"
    assert len(made.password) >= 43
    assert ensure_security(tmp_path / "another").password != made.password
    assert made.password not in f"{made!r} {made}"


def test_a_client_of_either_kind_is_told_the_login(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'protocol = "SASL_PLAINTEXT"\nmechanism = "PLAIN"\n'
        'username = "a"\npassword = "b\\"\\\\c"\n',
    )
    servers = LogServers(SERVERS, path)
    assert client_config(servers) == {
        "bootstrap.servers": SERVERS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": 'b"\\c',
    }
    java = java_client_config(servers)
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="a" password="b\\"\\\\c";'
    )


def test_certificates_are_named_to_librdkafka_and_shown_to_java(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-----{name}-----", encoding="ascii")
    path = written(
        tmp_path,
        f'protocol = "SSL"\nca_certificates = "{tmp_path}/ca"\n'
        f'certificate = "{tmp_path}/certificate"\nkey = "{tmp_path}/key"\nkey_password = "x"\n',
    )
    servers = LogServers(SERVERS, path)
    assert client_config(servers) == {
        "bootstrap.servers": SERVERS,
        "security.protocol": "SSL",
        "ssl.ca.location": f"{tmp_path}/ca",
        "ssl.certificate.location": f"{tmp_path}/certificate",
        "ssl.key.location": f"{tmp_path}/key",
        "ssl.key.password": "x",
    }
    assert java_client_config(servers) == {
        "bootstrap.servers": SERVERS,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----ca-----",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----certificate-----",
        "ssl.keystore.key": "-----key-----",
        "ssl.key.password": "x",
    }
    (tmp_path / "key").unlink()
    with pytest.raises(SettingsError, match=r"certificate .*/key cannot be read"):
        java_client_config(servers)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('protocol = "TLS"', "protocol: expected one of PLAINTEXT, SSL, .*, got 'TLS'"),
        ('protocol = "SASL_SSL"\nmechanism = "GSSAPI"', "mechanism: expected one of PLAIN, "),
        ('protocol = "SASL_SSL"\nmechanism = "PLAIN"\nusername = "a"', "needs username and passw"),
        ('password = "secret"', "PLAINTEXT has no login: expected a protocol with SASL"),
        ('ca_certificates = "ca.pem"', "PLAINTEXT has no TLS: expected SSL or SASL_SSL"),
        ('protocol = "SSL"\nkey = "key.pem"', "certificate and key go together"),
        ('passwort = "secret"', "passwort is not expected there"),
        ("password = 7", "password is not expected there, or is no text"),
        ('password = "secret', "is not TOML"),
    ],
)
def test_what_is_no_security_file_is_refused_without_its_secret(
    tmp_path: Path, text: str, error: str
) -> None:
    with pytest.raises(SettingsError, match=error) as found:
        read_security(written(tmp_path, text))
    assert "secret" not in str(found.value)


def test_a_file_that_is_not_there_or_that_others_may_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"security file of the log .*: No such file"):
        read_security(tmp_path / "none")
    with pytest.raises(SettingsError, match="others may write the security file"):
        read_security(written(tmp_path, "", 0o620))


def test_servers_are_their_text_and_keep_their_file(tmp_path: Path) -> None:
    path = tmp_path / "log-security.toml"
    servers = LogServers(SERVERS, path)
    assert servers == SERVERS
    assert SERVERS in {servers}
    for copied in (copy.deepcopy(servers), pickle.loads(pickle.dumps(servers))):
        assert isinstance(copied, LogServers)
        assert copied.security_file == path
    assert (
        client_config(SERVERS)
        == client_config(LogServers(SERVERS))
        == {
            "bootstrap.servers": SERVERS,
            "security.protocol": "PLAINTEXT",
        }
    )
    assert ClientSecurity().of_java() == {"security.protocol": "PLAINTEXT"}


def test_a_process_is_told_where_the_file_is_and_nothing_of_it(tmp_path: Path) -> None:
    servers = LogServers(SERVERS, tmp_path / "file")
    assert environment_of(servers, "gateway") == {
        "MQLAKE_GATEWAY_LOG__BOOTSTRAP_SERVERS": SERVERS,
        "MQLAKE_GATEWAY_LOG__SECURITY_FILE": f"{tmp_path}/file",
    }
    assert environment_of(SERVERS, "api") == {"MQLAKE_API_LOG__BOOTSTRAP_SERVERS": SERVERS}
    settings = LogSettings(bootstrap_servers=SERVERS, security_file=tmp_path / "file")
    assert settings.servers == SERVERS
    assert settings.servers.security_file == tmp_path / "file"
