import pytest

from bench.load.programs import LoadPrograms, build_programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> LoadPrograms:
    """Return the load programs; the fault tests need a C compiler as well."""
    return build_programs(tmp_path_factory.mktemp("programs"))
