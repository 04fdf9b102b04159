from bench.parts.codec import measure_codec
from bench.results.figures import GOALS


def test_the_codec_is_measured_both_ways() -> None:
    figures = {figure.name: (figure, rate) for figure, rate in measure_codec().items()}
    goals = [name for name in GOALS if name.startswith("codec")]
    assert any("decode" in name for name in goals)
    assert any("encode" in name for name in goals)
    for name in goals:
        figure, rate = figures[name]
        assert figure.goal == 400_000
        assert figure.at_least
        assert rate > 0
