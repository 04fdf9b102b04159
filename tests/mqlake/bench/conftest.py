import shutil

import pytest

from mqlake.bench.programs import COMPILERS, FALLBACK, Programs, build_programs


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    programs = build_programs(tmp_path_factory.mktemp("programs"))
    assert programs != FALLBACK, "the load programs do not compile"
    return programs


@pytest.fixture(params=["c", "python"])
def programs(request: pytest.FixtureRequest) -> Programs:
    """Return the load programs, once in each language."""
    if request.param == "python":
        return FALLBACK
    if not any(shutil.which(name) for name in COMPILERS):
        pytest.skip("no C compiler; the others are used there")
    compiled: Programs = request.getfixturevalue("compiled")
    return compiled
