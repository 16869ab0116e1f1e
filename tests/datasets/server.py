"""A web server on this machine that misbehaves as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """One file at every address, and how it is served.

    Attributes
    ----------
    content : bytes
    length : bool
        Whether the length is announced.
    cut : list of int
        Bytes after which successive answers break off.
    status : list of int
        Codes of successive answers before any content.
    requests : list of dict
        Headers of the requests so far.
    """

    content: bytes = b""
    length: bool = True
    cut: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve on 127.0.0.1 for the duration of the block."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            site.requests.append(dict(self.headers))
            if site.status:
                self.send_error(site.status.pop(0))
                return
            self.send_response(200)
            if site.length:
                self.send_header("Content-Length", str(len(site.content)))
            self.end_headers()
            self.wfile.write(site.content[: site.cut.pop(0)] if site.cut else site.content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}/file.bin"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
