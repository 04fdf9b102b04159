from pathlib import Path

import pytest

from launcher.log import cluster as log_cluster
from launcher.log.cluster import check_cluster, cluster_id
from launcher.log.kafka import running_kafka
from launcher.paths import DataDirectory
from launcher.ports import free_ports
from launcher.settings import LocalSettings
from launcher.testing.systems import LocalSystem
from mqlake.errors import OperationalError, SettingsError
from mqlake.settings import load


@pytest.mark.kafka
def test_a_data_directory_counts_on_the_log_that_it_began_with(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    data.root.mkdir()
    with running_kafka(tmp_path / "first") as kafka:
        servers = kafka.bootstrap_servers
        first = cluster_id(servers)
        for _ in range(2):
            check_cluster(data, servers)
        assert data.log_cluster.read_text() == f"{first}\n"
        data.log_cluster.write_text("another\n")
        with pytest.raises(OperationalError, match=f"is cluster {first}, and "):
            check_cluster(data, servers)
    assert data.log_cluster.read_text() == "another\n"


def test_a_log_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cluster, "ANSWER_SECONDS", 0.2)
    (port,) = free_ports(1)
    data = DataDirectory(tmp_path)
    with pytest.raises(OperationalError, match=f"the log at 127.0.0.1:{port} does not answer"):
        check_cluster(data, f"127.0.0.1:{port}")
    assert not data.log_cluster.exists()


def test_a_security_file_is_for_a_log_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "log-security.toml"
    with pytest.raises(SettingsError, match="log_security_file is for a log of your own"):
        load(LocalSettings, log_security_file=path)
    settings = load(LocalSettings, log_servers="kafka:9092", log_security_file=path)
    assert settings.log_security_file == path


def test_copies_take_brokers(tmp_path: Path) -> None:
    environment = {"MQLAKE_LOCAL_DURABILITY": "D2"}
    system = LocalSystem.in_folder(tmp_path / "data", environment=environment)
    result = system.run("up", *system.up_arguments(), "--detach")
    assert result.returncode == 1
    assert "durability D2 takes a log of three brokers: name them in log_servers" in result.stderr
