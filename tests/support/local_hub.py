"""A model hub on this machine: the few addresses of the hub's protocol that its client asks for, over real HTTP."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _handler(repositories: dict[str, Path], arguments: list[str]):
    """``repositories`` maps ``models/OWNER/NAME`` and ``datasets/OWNER/NAME`` to folders."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.request_body = self.rfile.read(length)
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            arguments.append(f"{self.command} {path}")
            for name, folder in repositories.items():
                if path.startswith(f"api/{name}"):
                    return self.api(path.removeprefix(f"api/{name}").strip("/"), name, folder, body)
                resolve = f"{name.removeprefix('models/')}/resolve/"
                if path.startswith(resolve):
                    return self.file(folder / path.removeprefix(resolve).partition("/")[2], body)
            self.send(404, {"error": "Repository not found"}, body, {"X-Error-Code": "RepoNotFound"})

        def api(self, rest: str, name: str, folder: Path, body: bool) -> None:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            if rest.startswith("tree/") or rest.startswith("paths-info/"):
                under = rest.split("/", 2)[2] if rest.count("/") > 1 and rest.startswith("tree/") else ""
                entries = [self.entry(path, folder) for path in files]
                entries += [
                    {"type": "directory", "path": str(path.relative_to(folder)), "oid": "0" * 40, "size": 0}
                    for path in sorted(folder.rglob("*"))
                    if path.is_dir()
                ]
                return self.send(200, [e for e in entries if e["path"].startswith(under)], body)
            siblings = [{"rfilename": str(path.relative_to(folder))} for path in files]
            owner_name = name.partition("/")[2]
            actual = {"id": owner_name, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0}
            self.send(200, {**actual, "siblings": siblings, "gated": False, "disabled": False}, body)

        def entry(self, path: Path, folder: Path) -> dict:
            digest = hashlib.sha1(path.read_bytes()).hexdigest()
            name = str(path.relative_to(folder))
            return {"type": "file", "path": name, "size": path.stat().st_size, "oid": digest}

        def file(self, path: Path, body: bool) -> None:
            if not path.is_file():
                return self.send(404, {"error": "Entry not found"}, body, {"X-Error-Code": "EntryNotFound"})
            data = path.read_bytes()
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            span = self.headers.get("Range")
            if span:
                start, _, stop = span.removeprefix("bytes=").partition("-")
                total, data = len(data), data[int(start) : int(stop) + 1 if stop else None]
                headers["Content-Range"] = f"bytes {start}-{int(start) + len(data) - 1}/{total}"
            self.send(206 if span else 200, data, body, {**headers, "Accept-Ranges": "bytes"})

        def send(self, status: int, content, body: bool, headers: dict[str, str] | None = None) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
            for name, value in {"Content-Type": kind, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

    return Handler


@contextmanager
def serving(repositories: dict[str, Path]):
    """Serve the folders for a block; yields the endpoint's address and the list of what was asked for."""
    arguments: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(repositories, arguments))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", arguments
    finally:
        server.shutdown()
        server.server_close()
