"""The route function alone: cost of a match, a change, a filter's memory; in a JVM of its own.

The processor's time of one thread, so that other work of the machine counts little.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

from bench.results.figures import Figures, figure
from launcher.paths import RUNTIME
from mqlake.errors import OperationalError
from streaming.jvm.compiler import build_jar, build_routing_jar
from streaming.jvm.jars import PYSPARK_JARS, extra_jars
from streaming.jvm.jit import COMPILER_OPTIONS
from streaming.jvm.process import java_executable

FILTERS: Final = (100_000, 1_000_000)
MESSAGES: Final = 400_000
_SOURCE: Final = Path(__file__).parent / "RouteBench.java"
_MAIN_CLASS: Final = "mqlake.routing.RouteBench"
_TIMEOUT_SECONDS: Final = 300.0


def measure_route_match(sizes: tuple[int, ...] = FILTERS, messages: int = MESSAGES) -> Figures:
    """Measure the route function with each number of filters, in rounds of `messages`.

    Raises:
        OperationalError: No Java, no jars, or the program did not end well.
    """
    folder = RUNTIME / "bench"
    jars_dir = RUNTIME / "jars"
    classes = build_routing_jar(folder, jars_dir)
    bench = build_jar("route-bench", [_SOURCE], folder, jars_dir, (classes,))
    jars = [bench, *extra_jars(jars_dir), classes]
    command = [
        java_executable(),
        *COMPILER_OPTIONS,
        "-XX:+UseSerialGC",
        "-Xmx1g",
        "-cp",
        os.pathsep.join([*map(str, jars), str(PYSPARK_JARS / "*")]),
        _MAIN_CLASS,
    ]
    figures: Figures = {}
    for filters in sizes:
        try:
            done = subprocess.run(
                [*command, str(filters), str(messages)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
                check=True,
            )
        except subprocess.CalledProcessError as exc:
            raise OperationalError(f"the route function alone: {exc.stderr.strip()}") from exc
        except subprocess.TimeoutExpired as exc:
            raise OperationalError(f"the route function alone took {exc.timeout:.0f} s") from exc
        for line in done.stdout.splitlines():
            name, unit, value = line.split("\t")
            key = figure(f"route function, {filters:,} filters, {name}", unit)
            figures[key] = float(value)
    return figures
