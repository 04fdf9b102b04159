import pytest

from bench.results.figures import figure
from lab import __main__ as lab


def test_an_experiment_is_run_with_each_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        lab.EXPERIMENTS, "balancing", (lambda seed: {figure("seed", ""): float(seed)}, 3)
    )
    assert lab.main(["balancing"]) == 0
    shown = capsys.readouterr().out
    assert "seed" in shown
    assert "1" in shown


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["balancing", "placing"]])
def test_what_is_no_experiment_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.main(arguments) == 2
    assert "balancing|placing" in capsys.readouterr().err
