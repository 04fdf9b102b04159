import resource
import subprocess
import sys

import pytest

from ingest.open_files import raise_open_files

pytestmark = pytest.mark.programs

PROGRAM = """
import resource
from ingest.open_files import raise_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert raise_open_files() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_a_limit_that_is_high_enough_stays() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_open_files() == hard
