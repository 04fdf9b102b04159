"""What router and lake import, in a process of its own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.programs

# pyspark imports this module with each session; it imports pandas where there is one.
PROGRAM = """
import importlib, sys
from streaming.application import application
from streaming.settings.lake import LakeSettings

def begin(stop):
    importlib.import_module("pyspark.testing.utils")
    importlib.import_module("pyspark.sql.classic.dataframe")
    print([name for name in ("numpy", "pandas", "pyarrow") if sys.modules.get(name)])
    return 0

heart = application.Heart("lake", None)
settings = LakeSettings(data_dir=".", jars_dir=".")
sys.exit(application.run(settings, heart, begin))
"""


def test_an_application_imports_no_pandas() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
