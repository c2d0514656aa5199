"""A model hub on this machine, as far as its client needs one: HEAD with commit and ETag, GET, and its refusals."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class SmallHub:
    """`files` by "org/repo/name"; `refuse` makes it answer (status, X-Error-Code) to everything; `seen` is asked."""

    files: dict[str, bytes]
    refuse: tuple[int, str] | None = None
    seen: list[str] = field(default_factory=list)
    endpoint: str = ""


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[SmallHub]:
    hub = SmallHub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: SmallHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            hub.seen.append(f"{self.command} {self.path}")
            repository, _, rest = self.path.strip("/").partition("/resolve/")
            content = hub.files.get(f"{repository}/{rest.partition('/')[2]}")
            if hub.refuse or content is None:
                known = any(name.startswith(f"{repository}/") for name in hub.files)
                status, code = hub.refuse or (404, "EntryNotFound" if known else "RepoNotFound")
                return self._say(status, {"X-Error-Code": code} if code else {}, b"", with_body)
            commit, tag = (hashlib.sha1(text).hexdigest() for text in (repr(hub.files).encode(), content))
            self._say(200, {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}, content, with_body)

        def _say(self, status: int, headers: dict[str, str], content: bytes, with_body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    return Handler
