"""The dashboard's scripts and style sheets, as eslint, prettier and stylelint want them."""

import os
import subprocess

import pytest

from launcher.paths import CHECKOUT, CONFIG
from tests.integration.downloads import node_modules

pytestmark = pytest.mark.tools

CHECKED = ("api/dashboard/static", "conf/npm", "tests/integration")
"""Folders; what lies below `vendor/` is as it was published."""
SECONDS = 60
LINTERS = {
    "eslint": ("eslint/bin/eslint.js", "--config", "eslint.config.cjs"),
    "prettier": ("prettier/bin/prettier.cjs", "--check", "--config", "prettier.config.cjs"),
    "stylelint": ("stylelint/bin/stylelint.mjs", "--config", "stylelint.config.cjs"),
}


def lint(name: str, *files: str) -> subprocess.CompletedProcess[str]:
    """Run a linter on files of the checkout."""
    packages = node_modules()
    program, *options, config = LINTERS[name]
    command = ["node", str(packages / program), *options, str(CONFIG / "npm" / config), *files]
    return subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, "NODE_PATH": str(packages), "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_mqtt_client_is_that_of_the_lock() -> None:
    vendored = CHECKOUT / "api/dashboard/static/vendor/mqtt/mqtt.esm.js"
    published = node_modules() / "mqtt/dist/mqtt.esm.js"
    assert vendored.read_bytes() == published.read_bytes()


@pytest.mark.parametrize(
    ("name", "endings"),
    [
        ("eslint", (".js", ".cjs")),
        ("prettier", (".js", ".cjs", ".css", ".html")),
        ("stylelint", (".css",)),
    ],
)
def test_linters_find_nothing(name: str, endings: tuple[str, ...]) -> None:
    files = [
        path.relative_to(CHECKOUT).as_posix()
        for folder in CHECKED
        for path in sorted((CHECKOUT / folder).rglob("*"))
        if path.suffix in endings and not {"vendor", "node_modules"} & set(path.parts)
    ]
    assert files
    result = lint(name, *files)
    if result.returncode != 0:
        pytest.fail(result.stdout, pytrace=False)
