"""How a settings file is written from a class."""

from typing import Annotated, Literal

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from cli.shared.settings_file import render
from mqlake.settings import ProcessSettings, SettingsGroup


class Limits(SettingsGroup):
    """How much there may be."""

    clients: int = Field(default=100, ge=1, le=1000, description="Clients at the same time.")
    ratio: float = Field(default=0.5, gt=0, description="Share of them.")


class Plain(SettingsGroup):
    """A plain door."""

    kind: Literal["plain"] = "plain"
    port: int = Field(description="Port of the door.", examples=[1884])
    label: str = Field(default="", description="For people.")


class Locked(SettingsGroup):
    """A door with a key."""

    kind: Literal["locked"]
    port: int = Field(default=8883, description="Port of the door.")
    label: str = Field(default="", description="For people.")
    key: str = Field(description="Its key.", examples=["k"])


Door = Annotated[Plain | Locked, Field(discriminator="kind")]


class SampleSettings(ProcessSettings):
    """Settings of a sample.

    Read by nobody.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_SAMPLE_")

    limits: Limits = Limits()
    doors: tuple[Door, ...] = Field(default=(), description="Ways in.")
    named: dict[str, Plain] = Field(
        default_factory=dict, description="Doors by name.", examples=["front"]
    )
    colour: Literal["red", "green"] = Field(default="red", description="Of the walls.")
    labels: dict[str, str] = Field(
        default_factory=dict, description="Free words.", examples=[{"a.b": "c", "d": "e"}]
    )
    file: str | None = Field(default=None, description="Where it is.", examples=["/etc/x"])


@pytest.fixture(scope="module", name="text")
def rendered() -> str:
    return render(SampleSettings)


def test_head_is_the_docstring_and_tells_the_environment(text: str) -> None:
    assert text.startswith("# Settings of a sample.\n# Read by nobody.\n# Each key is shown")
    assert "MQLAKE_SAMPLE_LOG_LEVEL=DEBUG" in text
    assert "MQLAKE_SAMPLE_METRICS__PORT=9464" in text


@pytest.mark.parametrize(
    "lines",
    [
        '# Of the walls.\n#colour = "red"  # "red" or "green"\n',
        '# Where it is.\n#file = "/etc/x"  # an example, not a default\n',
        '#labels = { "a.b" = "c", d = "e" }  # an example, not a default\n',
        "# How much there may be.\n[limits]\n# Clients at the same time.\n",
        "# Clients at the same time.\n#clients = 100  # 1 to 1000\n",
        "# Share of them.\n#ratio = 0.5  # more than 0\n",
    ],
)
def test_key_has_comment_value_and_bounds(text: str, lines: str) -> None:
    assert lines in text


def test_kinds_of_a_list_have_a_table_each_and_share_what_all_have(text: str) -> None:
    assert (
        '# Ways in.\n\n# A plain door.\n#[[doors]]\n#kind = "plain"\n# Port of the door.\n'
        '#port = 1884  # required\n# For people.\n#label = ""\n\n'
        '# A door with a key.\n#[[doors]]\n#kind = "locked"  # required\n'
        '# Its key.\n#key = "k"  # required\n'
    ) in text


def test_kind_that_was_shown_before_shows_only_what_it_must_have(text: str) -> None:
    assert "# Doors by name.\n#[named.front]\n#port = 1884  # required\n\n" in text


def test_keys_of_every_process_and_then_tables_come_last(text: str) -> None:
    order = ["#colour", "#file", "#heartbeat_file", "#log_level", "[limits]", "[metrics]"]
    assert sorted(order, key=text.index) == order


class Speechless(ProcessSettings):
    model_config = SettingsConfigDict(env_prefix="MQLAKE_SPEECHLESS_")

    file: str | None = None


def test_key_without_default_and_example_is_an_error_of_the_class() -> None:
    with pytest.raises(AssertionError, match="neither a default nor an example"):
        render(Speechless)
