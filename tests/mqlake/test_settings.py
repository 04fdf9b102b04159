from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from mqlake.errors import SettingsError
from mqlake.settings import LogSettings, ProcessSettings, SettingsGroup, load


class Limits(SettingsGroup):
    max_clients: int = Field(default=100, ge=1, le=1000)


class SampleSettings(ProcessSettings):
    model_config = SettingsConfigDict(env_prefix="MQLAKE_SAMPLE_")

    name: str = "sample"
    port: int = Field(default=1883, ge=0, le=65_535)
    limits: Limits = Limits()
    log: LogSettings = LogSettings()


def toml(folder: Path, text: str) -> Path:
    path = folder / "sample.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_file_and_environment_the_defaults_hold() -> None:
    settings = load(SampleSettings)
    assert (settings.name, settings.port, settings.limits.max_clients) == ("sample", 1883, 100)
    assert settings.log == LogSettings(bootstrap_servers="127.0.0.1:9092")
    assert isinstance(settings, SampleSettings)


def test_a_file_sets_keys_and_groups(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        'name = "a"\nport = 1\n[log]\nbootstrap_servers = "k:1"\n[limits]\nmax_clients = 7\n',
    )
    settings = load(SampleSettings, path)
    assert (settings.name, settings.port, settings.limits.max_clients) == ("a", 1, 7)
    assert settings.log.bootstrap_servers == "k:1"


def test_the_environment_wins_over_the_file_and_the_caller_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toml(tmp_path, 'name = "file"\nport = 1\n[limits]\nmax_clients = 7\n')
    monkeypatch.setenv("MQLAKE_SAMPLE_PORT", "2")
    monkeypatch.setenv("MQLAKE_SAMPLE_NAME", "environment")
    settings = load(SampleSettings, path, name="caller")
    assert (settings.name, settings.port, settings.limits.max_clients) == ("caller", 2, 7)


def test_the_environment_reaches_a_key_inside_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toml(tmp_path, "[limits]\nmax_clients = 7\n")
    monkeypatch.setenv("MQLAKE_SAMPLE_LOG__BOOTSTRAP_SERVERS", "env:1")
    settings = load(SampleSettings, path)
    assert settings.log.bootstrap_servers == "env:1"
    assert settings.limits.max_clients == 7


def test_a_process_is_not_set_by_the_variables_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MQLAKE_GATEWAY_PORT", "2")
    monkeypatch.setenv("MQLAKE_PORT", "3")
    assert load(SampleSettings).port == 1883


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1\n", "prot: there is no such setting, did you mean port?.*sample.toml"),
        ("[limits]\nmax = 1\n", r"limits\.max: there is no such setting \(file"),
        ("[limits]\nmax_client = 1\n", r"did you mean limits\.max_clients\?"),
        ("[port]\nx = 1\n", "port"),
        ("quite_another = 1\n", r"quite_another: there is no such setting \(file"),
        ("port = 70000\n", "port.*65535.*70000"),
        ("[limits]\nmax_clients = 0\n", r"limits\.max_clients.*1"),
        ('port = "many"\n', "port.*integer.*'many'"),
        ('log_level = "LOUD"\n', "log_level"),
        ("port = \n", "sample.toml"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(SampleSettings, toml(tmp_path, text))


def test_a_wrong_variable_is_refused_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQLAKE_SAMPLE_LIMITS__MAX_CLIENTS", "5000")
    with pytest.raises(
        SettingsError,
        match=r"limits\.max_clients: .*5000' \(environment variable MQLAKE_SAMPLE_LIMITS__MAX",
    ):
        load(SampleSettings)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (
            "MQLAKE_SAMPLE_PROT",
            r"SAMPLE_PROT: there is no such .*, did you mean MQLAKE_SAMPLE_PORT\?",
        ),
        (
            "mqlake_sample_prot",
            r"variable mqlake_sample_prot: .*, did you mean MQLAKE_SAMPLE_PORT\?",
        ),
        ("MQLAKE_SAMPLE_LOG_SERVERS", "MQLAKE_SAMPLE_LOG_SERVERS: there is no such setting"),
        ("MQLAKE_SAMPLE_LIMIT__MAX_CLIENTS", r"did you mean MQLAKE_SAMPLE_LIMITS\?"),
        ("MQLAKE_SAMPLE_LIMITS__MAX", r"limits\.max: there is no such setting \(environment"),
    ],
)
def test_a_variable_that_sets_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, message: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(SettingsError, match=message):
        load(SampleSettings)


def test_a_variable_for_a_group_that_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQLAKE_SAMPLE_LIMITS", "many")
    with pytest.raises(SettingsError, match="limits"):
        load(SampleSettings)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml does not exist"):
        load(SampleSettings, tmp_path / "missing.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "\xff"\n')
    with pytest.raises(SettingsError, match=r"latin\.toml"):
        load(SampleSettings, path)


def test_settings_do_not_change() -> None:
    settings = load(SampleSettings)
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1
