import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from launcher.paths import DataDirectory
from launcher.planning.preflight import (
    WantedPort,
    available_memory,
    check_contents,
    check_directory,
    check_disk,
    check_memory,
    check_ports,
    read_available_memory,
)
from launcher.ports import free_ports
from mqlake.errors import OperationalError


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """A data directory as a run leaves it."""
    data = DataDirectory(tmp_path / "data")
    (data.kafka / "log").mkdir(parents=True)
    (data.kafka / "log" / "meta.properties").write_text("#\nnode.id=1\ncluster.id=abc\nversion=1\n")
    (data.tables / "messages" / "_delta_log").mkdir(parents=True)
    (data.tables / "messages" / "part.parquet").touch()
    (data.checkpoints / "router").mkdir(parents=True)
    data.lock.touch()
    return data


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def test_directory_of_an_earlier_run_passes(data: DataDirectory) -> None:
    check_directory(data)
    check_contents(data, embedded=True)


def test_a_directory_with_a_log_of_its_own_takes_no_other(data: DataDirectory) -> None:
    before = snapshot(data.root)
    with pytest.raises(OperationalError, match="has a log of its own, which log_servers would"):
        check_contents(data, embedded=False)
    assert snapshot(data.root) == before


def test_the_checkpoints_of_another_log_are_not_taken_for_the_embedded_ones(
    data: DataDirectory,
) -> None:
    shutil.rmtree(data.kafka)
    (data.checkpoints / "router" / "metadata").touch()
    check_contents(data, embedded=False)
    with pytest.raises(OperationalError, match="is missing while"):
        check_contents(data, embedded=True)


def test_directory_that_does_not_exist_yet_passes_and_is_not_made(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "a" / "b")
    check_directory(data)
    check_contents(data, embedded=True)
    check_disk(data.root, 1)
    assert not (tmp_path / "a").exists()


def test_empty_directory_passes_also_as_the_root_of_a_disk(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    check_directory(DataDirectory(tmp_path))


def test_foreign_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(OperationalError, match=r"not mqlake's \(letter.txt\): choose an empty"):
        check_directory(DataDirectory(tmp_path))


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(OperationalError, match="is a file: choose a folder with --data-dir"):
        check_directory(DataDirectory(tmp_path / "data"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OperationalError, match="cannot be written by this user"):
        check_directory(DataDirectory(tmp_path / "data"))
    tmp_path.chmod(0o700)


def test_log_without_its_identity_is_refused_and_left_alone(data: DataDirectory) -> None:
    (data.kafka / "log" / "meta.properties").unlink()
    before = snapshot(data.root)
    with pytest.raises(OperationalError, match=r"meta.properties is missing: restore it from a"):
        check_contents(data, embedded=True)
    assert snapshot(data.root) == before


@pytest.mark.parametrize(
    "content", [b"", b"node.id=2\ncluster.id=x\n", b"\xff\xfe\0", b"node.id=1"]
)
def test_log_with_a_broken_identity_is_refused(data: DataDirectory, content: bytes) -> None:
    (data.kafka / "log" / "meta.properties").write_bytes(content)
    with pytest.raises(OperationalError, match="or start with another --data-dir"):
        check_contents(data, embedded=True)


def test_lost_log_is_refused_while_checkpoints_count_on_it(data: DataDirectory) -> None:
    (data.kafka / "log").rename(data.root / "elsewhere")
    with pytest.raises(OperationalError, match=r"is missing while .* counts on it"):
        check_contents(data, embedded=True)


def test_log_that_was_never_made_passes(data: DataDirectory) -> None:
    (data.kafka / "log").rename(data.root / "elsewhere")
    (data.checkpoints / "router").rmdir()
    (data.checkpoints / "lock").touch()
    check_contents(data, embedded=True)


def test_table_without_its_delta_log_is_refused(data: DataDirectory) -> None:
    (data.tables / "messages" / "_delta_log").rmdir()
    with pytest.raises(OperationalError, match="messages is damaged, it has no _delta_log"):
        check_contents(data, embedded=True)


def test_what_is_left_of_a_table_that_was_being_removed_passes(data: DataDirectory) -> None:
    (data.tables / ".rule_x" / "common").mkdir(parents=True)
    check_contents(data, embedded=True)


def test_empty_table_folder_passes(data: DataDirectory) -> None:
    (data.tables / "new").mkdir()
    check_contents(data, embedded=True)


def test_too_little_memory_is_told_with_both_figures() -> None:
    check_memory(2_500_000_000, 2500, gateways=1)
    with pytest.raises(OperationalError, match=r"2.5 GB of memory are available, 2.7 GB are"):
        check_memory(2_500_000_000, 2500, gateways=3)


def test_too_little_disk_is_told_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"GB of disk are free in .*, 1000000.0 GB are need"):
        check_disk(tmp_path / "not yet", 1_000_000_000)


@pytest.mark.parametrize(
    ("limits", "available"),
    [
        ({}, 1000 * 1024),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 1000 * 1024),
        ({"memory.max": "4096\n", "memory.current": "96\n"}, 4000),
        ({"memory.max": "10\n", "memory.current": "20\n"}, 0),
    ],
)
def test_available_memory_is_bounded_by_the_control_group(
    limits: dict[str, str], available: int
) -> None:
    assert available_memory("MemTotal: 9 kB\nMemAvailable:  1000 kB\n", limits) == available


def test_available_memory_of_this_machine_is_read() -> None:
    assert read_available_memory() > 0


def test_ports_nobody_has_pass() -> None:
    first, second = free_ports(2)
    check_ports(
        [
            WantedPort("127.0.0.1", first, "MQTT (gateway-1)", "--mqtt-port"),
            WantedPort("0.0.0.0", second, "the API", "--api-port"),
        ]
    )


def test_port_in_use_names_part_and_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        sentence = (
            f"port {port} for the API is in use by another program "
            f"(`ss -ltnp sport = :{port}` shows it): choose another with --api-port"
        )
        with pytest.raises(OperationalError, match=f"^{re.escape(sentence)}$"):
            check_ports([WantedPort("127.0.0.1", port, "the API", "--api-port")])


def test_port_wanted_twice_names_both_parts() -> None:
    (port,) = free_ports(1)
    wanted = [
        WantedPort("127.0.0.1", port, "MQTT (gateway-1)", "--mqtt-port"),
        WantedPort("127.0.0.1", port, "the API", "--api-port"),
    ]
    with pytest.raises(OperationalError, match=r"is wanted by MQTT \(gateway-1\) and the API"):
        check_ports(wanted)


def test_ports_that_count_up_beyond_the_last_are_refused() -> None:
    with pytest.raises(OperationalError, match=r"port 65536 for MQTT .* does not exist"):
        check_ports([WantedPort("127.0.0.1", 65536, "MQTT (gateway-2)", "--mqtt-port")])
