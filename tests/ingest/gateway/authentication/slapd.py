"""A directory of its own: OpenLDAP's server, from Debian's packages."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme

from launcher.ports import free_ports
from launcher.testing.systems import await_condition

SLAPD: Final = "/usr/sbin/slapd"
INSTALL: Final = "OpenLDAP's server is missing: apt install slapd"
BASE: Final = "dc=example,dc=org"
SERVICE: Final = f"cn=mqlake,{BASE}"
SERVICE_PASSWORD: Final = "a service's password"
GROUP: Final = f"cn=operators,ou=groups,{BASE}"
START_SECONDS: Final = 30.0

CONFIGURATION: Final = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb.la
TLSCertificateFile {folder}/server.pem
TLSCertificateKeyFile {folder}/server.key
pidfile {folder}/slapd.pid
database mdb
suffix "{base}"
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{service}" read by anonymous auth by * none
"""
ENTRIES: Final = f"""
dn: {BASE}
objectClass: organization
objectClass: dcObject
o: Example
dc: example

dn: {SERVICE}
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: mqlake
userPassword: {SERVICE_PASSWORD}

dn: ou=people,{BASE}
objectClass: organizationalUnit
ou: people

dn: cn=Ann \\2C the first,ou=people,{BASE}
objectClass: inetOrgPerson
cn: Ann , the first
sn: Ann
uid: ann
userPassword: open sesame
seeAlso: {GROUP}
seeAlso: cn=others,ou=groups,{BASE}
description: {{"actions": ["publish"], "topics": ["pumps/%u/#"]}}
l: north

dn: cn=odd,ou=people,{BASE}
objectClass: inetOrgPerson
cn: odd
sn: Odd
uid: odd
userPassword: open sesame
description: {{"effect": "deny", "actions": ["publish"], "topics": ["#"]}}

dn: cn=odder,ou=people,{BASE}
objectClass: inetOrgPerson
cn: odder
sn: Odder
uid: odder
userPassword: open sesame
l: {"x" * 256}

dn: cn=two sites,ou=people,{BASE}
objectClass: inetOrgPerson
cn: two sites
sn: Two
uid: two
userPassword: open sesame
l: north
l: south

dn: cn=words,ou=people,{BASE}
objectClass: inetOrgPerson
cn: words
sn: Words
uid: words
userPassword: open sesame
description: no rule

dn: cn=twin one,ou=people,{BASE}
objectClass: inetOrgPerson
cn: twin one
sn: Twin
uid: twin
userPassword: open sesame

dn: cn=twin two,ou=people,{BASE}
objectClass: inetOrgPerson
cn: twin two
sn: Twin
uid: twin
userPassword: open sesame

dn: cn=no password,ou=people,{BASE}
objectClass: inetOrgPerson
cn: no password
sn: No
uid: nopass

dn: cn=many,ou=people,{BASE}
objectClass: inetOrgPerson
cn: many
sn: Many
uid: many
uid: more
userPassword: open sesame
"""


@dataclass(slots=True)
class Slapd:
    """Its process, its folder, and where it listens: plain and with TLS."""

    folder: Path
    port: int
    tls_port: int
    process: subprocess.Popen[bytes] | None = None

    def create(self, authority: trustme.CA) -> None:
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        certificate.cert_chain_pems[0].write_to_path(str(self.folder / "server.pem"))
        certificate.private_key_pem.write_to_path(str(self.folder / "server.key"))
        (self.folder / "data").mkdir()
        text = CONFIGURATION.format(folder=self.folder, base=BASE, service=SERVICE)
        (self.folder / "slapd.conf").write_text(text)
        command = ["/usr/sbin/slapadd", "-f", str(self.folder / "slapd.conf")]
        subprocess.run(command, input=ENTRIES.encode(), check=True, capture_output=True, timeout=60)

    def start(self) -> None:
        urls = f"ldap://127.0.0.1:{self.port}/ ldaps://127.0.0.1:{self.tls_port}/"
        self.process = subprocess.Popen(
            [SLAPD, "-d", "0", "-f", str(self.folder / "slapd.conf"), "-h", urls],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await_condition(self._listens, "slapd listens", timeout_seconds=START_SECONDS)

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "slapd has ended"
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=START_SECONDS)
            self.process = None


@contextmanager
def running_slapd(authority: trustme.CA) -> Iterator[Slapd]:
    if not Path(SLAPD).exists():
        raise FileNotFoundError(INSTALL)
    folder = Path(tempfile.mkdtemp(prefix="mqlake-ldap-"))
    port, tls_port = free_ports(2)
    server = Slapd(folder, port, tls_port)
    try:
        server.create(authority)
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
