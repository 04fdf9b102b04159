"""`bin/mqlake bench` with measurements that take no time."""

import json

import pytest
from click.testing import CliRunner

from bench.results.figures import Figure, Figures
from cli.system import bench
from mqlake.errors import OperationalError

pytestmark = pytest.mark.programs


def test_what_was_measured_is_printed_when_a_measurement_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = iter((1.0, 3.0))

    def take() -> Figures:
        value = next(values, None)
        if value is None:
            raise OperationalError("the machine went away")
        return {Figure("codec", "messages/s"): value}

    monkeypatch.setattr(bench, "WITHOUT_SYSTEM", {"codec": lambda: [take()]})
    result = CliRunner().invoke(bench.command, ["--only", "codec", "--runs", "3", "--json"])
    assert isinstance(result.exception, OperationalError)
    (figure,) = json.loads(result.stdout)["figures"]
    assert figure["values"] == [1.0, 3.0]
