import struct
from pathlib import Path

import pytest

from launcher.truststore import encode_truststore, write_truststore


def test_store_holds_its_certificates_under_names_of_their_own() -> None:
    store = encode_truststore([b"first", b"second"])
    assert struct.unpack_from(">III", store) == (0xFEEDFEED, 2, 2)
    assert b"certificate-0" in store
    assert b"certificate-1" in store
    assert store.count(b"X.509") == 2
    digest_bytes = 20
    assert store[:-digest_bytes].endswith(struct.pack(">I", 6) + b"second")


def test_machine_without_certificates_gets_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.crt"))
    assert not write_truststore(tmp_path / "store")
    assert not (tmp_path / "store").exists()
