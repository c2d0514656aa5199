"""A model hub on this machine, with the headers and codes that huggingface_hub's source asks for, and with faults.

Large files are sent from a second server, as the hub's CDN does. By hand: python tests/loopback_hub.py --help
"""

import argparse
import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".model", "tokenizer.json")
PIECE = 16 << 10


@dataclass(frozen=True)
class Asked:
    """A request, for faults to choose by."""

    server: str  # "hub" or "cdn"
    method: str
    path: str
    file: str  # in the repository; "" for what is about no file
    start: int


@dataclass(frozen=True)
class Fault:
    """What goes wrong with an answer."""

    status: int = 0  # answer this instead
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False  # before any answer
    cut_after: int | None = None  # bytes of the body, then hang up
    stall_after: int | None = None  # bytes of the body, then nothing more
    drip_s: float = 0.0  # between single bytes
    flip: int | None = None  # a byte of the file that comes changed
    no_ranges: bool = False  # 200 and the whole file
    shift: int = 0  # of the range that is sent
    claim_size: int | None = None  # in Content-Range or Content-Length
    etag: str = ""
    gzip: bool = False


@dataclass
class Repo:
    files: dict[str, bytes]
    token: str = ""  # gated: 401 without, 403 with another one
    moved_to: str = ""
    older: dict[str, dict[str, bytes]] = field(default_factory=dict)  # revision -> files


@dataclass
class LoopbackHub:
    repos: dict[str, Repo]
    fault: Callable[[Asked], Fault | None] = lambda asked: None
    bytes_per_s: float = 0.0  # of each connection; 0: as fast as it goes
    seen: list[Asked] = field(default_factory=list)
    sent: Counter = field(default_factory=Counter)  # bytes of bodies by file
    xet: dict[str, str] = field(default_factory=dict)  # file -> its hash in the store of chunks
    store: str = ""  # that store's address
    leaked: list[str] = field(default_factory=list)  # tokens that reached the CDN
    busy: set[int] = field(default_factory=set)  # threads with an answer under way
    endpoint: str = ""
    cdn: str = ""

    def forget(self) -> None:
        """Counts from here; what a killed client had asked for is no longer under way."""
        while self.busy:
            time.sleep(0.005)
        self.seen.clear()
        self.sent.clear()

    def asked(self, file: str) -> list[Asked]:
        return [one for one in self.seen if one.file == file and one.method == "GET"]


def commit_of(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted((name, sha256(data)) for name, data in files.items())).encode()).hexdigest()


@cache
def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(name: str) -> bool:
    return name.endswith(LARGE)


def digest(name: str, data: bytes) -> str:
    return sha256(data) if is_large(name) else git_sha1(data)


@contextmanager
def serving(repos: dict[str, Repo]) -> Iterator[LoopbackHub]:
    hub = LoopbackHub(repos)
    servers = [_Server(("127.0.0.1", 0), _handler(hub, name)) for name in ("hub", "cdn")]
    hub.endpoint, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True) for s in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are what the tests are about."""


def _handler(hub: LoopbackHub, server: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            hub.busy.add(threading.get_ident())
            try:
                self._answer()
            finally:
                hub.busy.discard(threading.get_ident())

        def log_message(self, *_: object) -> None:
            return

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start = int(found[1]) if found else 0
            asked = Asked(server, self.command, path, _file_of(path), start)
            hub.seen.append(asked)
            fault = hub.fault(asked) or Fault()
            if fault.hang_up:
                self.close_connection = True
                return
            if fault.status:
                return self._say(fault.status, fault.headers)
            if server == "cdn":
                return self._cdn(path, fault)
            return self._hub(path, fault)

        def _hub(self, path: str, fault: Fault) -> None:
            name = _repository_of(path)
            repo = hub.repos.get(name)
            if repo is None:
                return self._say(401 if not self._token() else 404, {"X-Error-Code": "RepoNotFound"})
            if repo.moved_to:
                return self._say(307, {"Location": self.path.replace(name, repo.moved_to, 1)})
            if repo.token and self._token() != repo.token:
                return self._say(403 if self._token() else 401, {"X-Error-Code": "GatedRepo"})
            if path.startswith("/api/models/"):
                return self._api(name, repo, path.removeprefix(f"/api/models/{name}"), fault)
            revision, _, file = path.removeprefix(f"/{name}/resolve/").partition("/")
            files = _at(repo, revision)
            if files is None:
                return self._say(404, {"X-Error-Code": "RevisionNotFound"})
            commit = {"X-Repo-Commit": commit_of(files)}
            if file not in files:
                return self._say(404, {"X-Error-Code": "EntryNotFound", **commit})
            data = files[file]
            etag = fault.etag or digest(file, data)
            if not is_large(file):
                return self._bytes(file, data, {**commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}, fault)
            location = f"{hub.cdn}/{name}/{commit_of(files)}/{file}?X-Amz-Expires=3600"
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
            if xet := hub.xet.get(file):
                linked |= {
                    "X-Xet-Hash": xet,
                    "X-Xet-Refresh-Route": f"{hub.endpoint}/api/models/{name}/xet-read-token/main",
                }
            return self._say(302, {**commit, **linked, "Location": location})

        def _api(self, name: str, repo: Repo, rest: str, fault: Fault) -> None:
            kind, _, revision = rest.strip("/").partition("/")
            files = _at(repo, revision.split("/")[0] or "main")
            if files is None:
                return self._say(404, {"X-Error-Code": "RevisionNotFound"})
            if kind == "xet-read-token":
                token = {"X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(int(time.time()) + 900)}
                return self._say(200, {**token, "X-Xet-Cas-Url": hub.store, **fault.headers})
            if kind == "tree":
                body = [_tree_entry(file, data) for file, data in sorted(files.items())]
            else:
                siblings = [_sibling(file, data) for file, data in sorted(files.items())]
                body = {"_id": "1", "id": name, "modelId": name, "sha": commit_of(files), "siblings": siblings}
            self._bytes("", json.dumps(body).encode(), {"Content-Type": "application/json"}, fault)

        def _cdn(self, path: str, fault: Fault) -> None:
            if token := self._token():
                hub.leaked.append(token)
            org, name, commit, file = path.strip("/").split("/", 3)
            files = _at(hub.repos[f"{org}/{name}"], commit)
            if files is None or file not in files:
                return self._say(403, {})
            self._bytes(file, files[file], {"ETag": f'"{hashlib.md5(files[file]).hexdigest()}"'}, fault)

        def _bytes(self, file: str, data: bytes, headers: dict[str, str], fault: Fault) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            size = len(data) if fault.claim_size is None else fault.claim_size
            status, start, stop = 200, 0, len(data)
            if asked and not fault.no_ranges:
                status, start = 206, int(asked[1]) + fault.shift
                stop = min(stop, int(asked[2]) + 1 + fault.shift) if asked[2] else stop
                if start >= len(data):
                    return self._say(416, {"Content-Range": f"bytes */{len(data)}"})
                headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
            if fault.flip is not None:
                data = data[: fault.flip] + bytes([data[fault.flip] ^ 1]) + data[fault.flip + 1 :]
            body = data[start:stop]
            length = len(body) if fault.claim_size is None or status == 206 else size
            encoding = {"Content-Encoding": "gzip"} if fault.gzip else {}
            self._head(status, {**headers, **encoding, **fault.headers, "Content-Length": str(length)})
            if self.command == "GET":
                self._send(file, body, fault)

        def _send(self, file: str, body: bytes, fault: Fault) -> None:
            if fault.drip_s:
                for at in range(len(body)):
                    self._write(file, body[at : at + 1])
                    time.sleep(fault.drip_s)
            end = min((n for n in (fault.cut_after, fault.stall_after) if n is not None), default=len(body))
            for at in range(0, min(end, len(body)), PIECE):
                self._write(file, body[at : min(at + PIECE, end)])
                if hub.bytes_per_s:
                    time.sleep(PIECE / hub.bytes_per_s)
            if fault.stall_after is not None:
                self.wfile.flush()
                time.sleep(60)
            if end < len(body):
                self.close_connection = True

        def _write(self, file: str, data: bytes) -> None:
            self.wfile.write(data)
            hub.sent[file] += len(data)

        def _say(self, status: int, headers: dict[str, str]) -> None:
            self._head(status, {**headers, "Content-Length": "0"})

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def _token(self) -> str:
            return self.headers.get("Authorization", "").removeprefix("Bearer ")

    return Handler


def _repository_of(path: str) -> str:
    parts = path.removeprefix("/api/models").strip("/").split("/")
    return "/".join(parts[:2])


def _file_of(path: str) -> str:
    if "/resolve/" in path:
        return path.partition("/resolve/")[2].partition("/")[2]
    return "" if path.startswith("/api/") else "/".join(path.strip("/").split("/")[3:])


def _at(repo: Repo, revision: str) -> dict[str, bytes] | None:
    known = {"main": repo.files, commit_of(repo.files): repo.files}
    for name, files in repo.older.items():
        known |= {name: files, commit_of(files): files}
    return known.get(revision)


def _sibling(file: str, data: bytes) -> dict:
    lfs = {"lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 134}} if is_large(file) else {}
    return {"rfilename": file, "size": len(data), "blobId": git_sha1(data), **lfs}


def _tree_entry(file: str, data: bytes) -> dict:
    lfs = {"lfs": {"oid": sha256(data), "size": len(data), "pointerSize": 134}} if is_large(file) else {}
    return {"type": "file", "path": file, "size": len(data), "oid": git_sha1(data), **lfs}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Serves a folder as a repository until Ctrl+C.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repo", default="local/model")
    parser.add_argument("--speed", type=float, default=0.0, help="bytes a second of each connection")
    given = parser.parse_args()
    with serving({given.repo: Repo(files_in(given.folder))}) as hub:
        hub.bytes_per_s = given.speed
        print(f"HF_ENDPOINT={hub.endpoint}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
