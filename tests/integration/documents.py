"""What documents have their readers type, for a system of a test."""

import re

from launcher.testing.systems import PROGRAM, LocalSystem

_BY_THE_FIXTURE = ("git clone", "bin/mqlake up", "bin/mqlake down")


def shell_lines(markdown: str) -> list[str]:
    """Return the lines of all shell blocks, but for those that start and stop the system."""
    blocks = re.findall(r"```sh\n(.*?)```", markdown, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if not line.startswith(_BY_THE_FIXTURE)]


def typed_at(system: LocalSystem, script: str) -> str:
    """Return a script whose commands find this system."""
    return re.sub(
        r"bin/mqlake ((?:rules )?[\w-]+)", rf"'{PROGRAM}' \1 --data-dir '{system.data_dir}'", script
    )
