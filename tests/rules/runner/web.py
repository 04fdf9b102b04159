"""A web server whose mood a test decides."""

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: object
    """By which it came."""


@dataclass
class Web:
    """What it has been asked, and what it answers.

    Attributes:
        answers: Statuses of the next answers; then 204.
        delay_seconds: Before each answer.
    """

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    delay_seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running_web(web: Web, context: ssl.SSLContext | None = None) -> Iterator[Web]:
    """Serve on the port of `web`, which is chosen when it is 0."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            asked = self.command, self.path, dict(self.headers)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            web.asked.append(Asked(*asked, body, self.connection))
            status = web.answers.pop(0) if web.answers else 204
            if web.delay_seconds:
                time.sleep(web.delay_seconds)
            self.send_response_only(status)
            for name, value in web.headers.items():
                self.send_header(name, value)
            text = b"" if status == 204 else f"status {status}".encode()
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    for method in ("POST", "PUT", "GET", "DELETE", "PATCH"):
        setattr(Handler, f"do_{method}", Handler.answer)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """Clients go away."""

    server = Server(("127.0.0.1", web.port), Handler)
    web.port = server.server_address[1]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
