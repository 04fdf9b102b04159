"""The Java sources, as google-java-format has them (AOSP style: four spaces)."""

import subprocess

import pytest

from launcher.java import find_java_home
from launcher.paths import CHECKOUT, RUNTIME
from tests.integration.downloads import node_modules

pytestmark = pytest.mark.tools

SECONDS = 120
FOLDERS = ("streaming/java", "bench", "tests")


def test_the_formatter_would_change_nothing() -> None:
    home = find_java_home(RUNTIME)
    java = home / "bin" / "java"
    listed = subprocess.run(
        [java, "--list-modules"], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    if "jdk.compiler@" not in listed.stdout:
        pytest.skip("this Java has no compiler, which the formatter is built on: a JDK has one")
    (jar,) = (node_modules() / "google-java-format/lib").glob("*-all-deps.jar")
    opened = (
        f"--add-exports=jdk.compiler/com.sun.tools.javac.{package}=ALL-UNNAMED"
        for package in ("api", "code", "file", "parser", "tree", "util")
    )
    files = [str(one) for folder in FOLDERS for one in (CHECKOUT / folder).rglob("*.java")]
    assert files
    options = ("--aosp", "--dry-run", "--set-exit-if-changed")
    done = subprocess.run(
        [java, *opened, "-jar", jar, *options, *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode:
        pytest.fail(f"format these (CONTRIBUTING.md):\n{done.stdout}{done.stderr}", pytrace=False)
