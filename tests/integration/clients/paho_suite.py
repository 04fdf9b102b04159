"""Run tests of paho-mqtt's own `test_mqttv5.py` against a gateway, one by one, as asked for.

    python paho_suite.py TEST_MQTTV5_PY DATA_DIR GATEWAY_NAME

Standard input: the name of a test a line, `Test.test_basic`, or `list`. Standard output: a line of
JSON for each, `{"outcome": "passed", "detail": ""}` or the list of names.

The suite is not changed. It starts and stops its server by a module `mqtt.brokers`, which is
another project's reference broker; here that module is a stand-in, and behind the port it shows
stands a gateway of a running system. When the suite restarts its server, the gateway's process is
killed.
"""

import importlib.util
import json
import socket
import sys
import threading
import time
import traceback
import unittest
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from launcher.testing.systems import LocalSystem
from mqlake.processes.status import read_state


class Front:
    """A port that stays open while the gateway behind it restarts; new connections then wait.

    A client that finds a closed port tries again only after ever longer pauses, and the suite does
    not wait that long.
    """

    def __init__(self, gateway: tuple[str, int]) -> None:
        self._gateway = gateway
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection; further ones wait until `open` is set."""
        self.open.clear()
        while self._sockets:
            one = self._sockets.pop()
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.open.wait()
        gateway = socket.create_connection(self._gateway)
        for one in (client, gateway):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets += [client, gateway]
        back = threading.Thread(target=_pump, args=(gateway, client), daemon=True)
        back.start()
        _pump(client, gateway)
        back.join()
        client.close()
        gateway.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class Server:
    """As much of `socketserver.TCPServer` as the suite asks of its server."""

    def __init__(self, front: Front, system: LocalSystem, gateway: str) -> None:
        self._front = front
        self._system = system
        self._gateway = gateway
        self.stopped = threading.Event()

    @property
    def socket(self) -> SimpleNamespace:
        return SimpleNamespace(getsockname=lambda: ("127.0.0.1", self._front.port))

    def shutdown(self) -> None:
        self.stopped.set()

    def server_close(self) -> None:
        """Restart the gateway: the suite calls this in the middle of a restart only."""
        self._front.cut()
        self._system.kill(self._gateway)
        self._system.await_healthy()
        self._front.open.set()


def install_stand_in(server: Server) -> None:
    """Make `import mqtt.brokers` find a module whose server is the gateway."""
    brokers: Any = ModuleType("mqtt.brokers")
    brokers.listeners = SimpleNamespace(TCPListeners=SimpleNamespace(server=server))

    def run(config: list[str]) -> None:
        server.stopped.clear()
        server.stopped.wait()

    brokers.run = run
    package: Any = ModuleType("mqtt")
    package.brokers = brokers
    sys.modules.update({"mqtt": package, "mqtt.brokers": brokers})


def load_suite(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_mqttv5", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Runner:
    """Runs tests by name; sets a class up before its first test, tears it down after its last."""

    def __init__(self, suite: ModuleType) -> None:
        loader = unittest.TestLoader()
        self._classes = {
            name: kind
            for name, kind in vars(suite).items()
            if isinstance(kind, type) and issubclass(kind, unittest.TestCase)
        }
        self.names = [
            f"{name}.{method}"
            for name, kind in self._classes.items()
            for method in loader.getTestCaseNames(kind)
        ]
        self._current: type[unittest.TestCase] | None = None
        self._set_up_error = ""

    def run(self, name: str) -> dict[str, str]:
        class_name, _, method = name.partition(".")
        kind = self._classes[class_name]
        if kind is not self._current:
            self.close()
            self._current = kind
            self._set_up_error = _error_of(kind.setUpClass)
        if self._set_up_error:
            return {"outcome": "failed", "detail": self._set_up_error}
        result = unittest.TestResult()
        kind(method).run(result)
        for outcome, entries in (
            ("failed", result.failures + result.errors),
            ("failed", [(test, "passed unexpectedly") for test in result.unexpectedSuccesses]),
            ("skipped", result.skipped),
        ):
            if entries:
                return {"outcome": outcome, "detail": "\n".join(text for _, text in entries)}
        return {"outcome": "passed", "detail": ""}

    def close(self) -> None:
        if self._current is not None and not self._set_up_error:
            _error_of(self._current.tearDownClass)
        self._current = None


def _error_of(step: Any) -> str:
    try:
        step()
    except unittest.SkipTest:
        raise
    except Exception:  # noqa: BLE001 - whatever a foreign test raises is its outcome
        return traceback.format_exc()
    return ""


def main(suite_file: str, data_dir: str, gateway: str) -> None:
    state = read_state(Path(data_dir))
    address = next(address for address in state.gateways if address.name == gateway)
    system = LocalSystem(Path(data_dir), mqtt_port=address.port, api_port=0)
    install_stand_in(Server(Front((address.host, address.port)), system, gateway))
    answers = sys.stdout
    sys.stdout = sys.stderr  # the suite prints
    warnings.simplefilter("ignore", DeprecationWarning)
    runner = Runner(load_suite(Path(suite_file)))
    for line in sys.stdin:
        name = line.strip()
        started = time.monotonic()
        answer: Any = runner.names if name == "list" else runner.run(name)
        print(f"{name}: {time.monotonic() - started:.1f} s")  # noqa: T201
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    runner.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
