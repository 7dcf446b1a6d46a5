"""A small Google Cloud Storage on 127.0.0.1: objects with generations, and the part of its JSON API that runs use."""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

OBJECT = re.compile(r"(?:/download)?/storage/v1/b/(?P<bucket>[^/]+)/o/(?P<name>.+)")
BUCKET = re.compile(r"(?:/upload)?/storage/v1/b/(?P<bucket>[^/]+)(?P<objects>/o)?")


class Store:
    """What the server holds.

    Attributes:
        objects: data and generation by bucket and name.
        before_write: called with an object's name before it is written; may wait, or raise PermissionError.
    """

    def __init__(self, bucket: str) -> None:
        self.objects: dict[str, dict[str, tuple[bytes, int]]] = {bucket: {}}
        self.before_write: Callable[[str], None] = lambda name: None
        self.lock, self.last = threading.Lock(), 0

    def write(self, bucket: str, name: str, data: bytes, wanted: str | None) -> int | None:
        """Return the new generation; None if the object's is not `wanted`."""
        self.before_write(name)
        with self.lock:
            _, now = self.objects[bucket].get(name, (b"", 0))
            if wanted is not None and int(wanted) != now:
                return None
            self.last += 1
            self.objects[bucket][name] = data, self.last
            return self.last


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    store: Store

    def log_message(self, *_arguments: Any) -> None:
        """Print nothing."""

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json; charset=UTF-8"
        for key, value in {"Content-Type": kind, **headers, "Content-Length": str(len(data))}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if found := OBJECT.fullmatch(url.path):
            self.one(found["bucket"], unquote(found["name"]), query)
        elif (found := BUCKET.fullmatch(url.path)) is None or found["bucket"] not in self.store.objects:
            self.answer(404, {"error": {"code": 404, "message": f"There is no {url.path}."}})
        elif self.command in ("POST", "PUT"):
            self.upload(found["bucket"], query, body)
        elif found["objects"]:
            self.listing(found["bucket"], query)
        else:
            self.answer(200, {"kind": "storage#bucket", "name": found["bucket"], "id": found["bucket"]})

    def resource(self, bucket: str, name: str) -> dict[str, str]:
        data, generation = self.store.objects[bucket][name]
        return {
            "kind": "storage#object", "bucket": bucket, "name": name, "size": str(len(data)),
            "generation": str(generation), "metageneration": "1", "updated": "2026-01-01T00:00:00.000Z",
            "timeCreated": "2026-01-01T00:00:00.000Z",
        }  # fmt: skip

    def one(self, bucket: str, name: str, query: dict[str, str]) -> None:
        """Give, describe or delete an object."""
        held = self.store.objects.get(bucket, {})
        if name not in held:
            return self.answer(404, {"error": {"code": 404, "message": f"There is no object {name}."}})
        data, generation = held[name]
        if self.command == "DELETE":
            del held[name]
            return self.answer(204)
        if query.get("ifGenerationNotMatch") == str(generation):
            return self.answer(304)
        if query.get("ifGenerationMatch", str(generation)) != str(generation):
            return self.answer(412, {"error": {"code": 412, "message": "Another generation."}})
        if query.get("alt") != "media":
            return self.answer(200, self.resource(bucket, name))
        headers = {"x_goog_generation": str(generation), "x_goog_stored_content_length": str(len(data))}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            if first >= len(data):
                return self.answer(416, Content_Range=f"bytes */{len(data)}")
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            return self.answer(206, data[first : last + 1], **headers)
        return self.answer(200, data, **headers)

    def listing(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, folders = list[dict[str, str]](), set[str]()
        for name in sorted(self.store.objects[bucket]):
            if not (name.startswith(prefix) and query.get("startOffset", "") <= name < query.get("endOffset", "\x7f")):
                continue
            below, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            if cut:
                folders.add(prefix + below + cut)
            else:
                items.append(self.resource(bucket, name))
        self.answer(200, {"kind": "storage#objects", "items": items, "prefixes": sorted(folders)})

    def upload(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        if query["uploadType"] == "resumable":  # JSON names the object; its data come whole, in a request of their own
            where = f"http://{self.headers['Host']}{urlsplit(self.path).path}?uploadType=media"
            return self.answer(200, Location=f"{where}&name={quote(json.loads(body)['name'], safe='')}")
        if query["uploadType"] == "multipart":  # JSON, then the data
            mark = self.headers.get_boundary("").encode()
            _, named, data, _ = body.split(b"--" + mark)
            name, body = json.loads(named.partition(b"\n\n")[2])["name"], data.partition(b"\n\n")[2].removesuffix(b"\n")
        else:
            name = query["name"]
        try:
            written = self.store.write(bucket, name, body, query.get("ifGenerationMatch"))
        except PermissionError as error:
            return self.answer(403, {"error": {"code": 403, "message": str(error)}})
        if written is None:
            return self.answer(412, {"error": {"code": 412, "message": "Another generation."}})
        return self.answer(200, self.resource(bucket, name))


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(bucket: str) -> Iterator[Store]:
    """Serve one empty bucket; clients of this process and of its children find it, and nothing else of Google's."""
    store = Store(bucket)
    methods = dict.fromkeys(("do_GET", "do_POST", "do_PUT", "do_DELETE"), Handler.handle_any)
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"store": store, **methods}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", url := f"http://127.0.0.1:{server.server_port}")
            patch.setenv("TENSORSTORE_GCS_HTTP_URL", url)
            patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # there is one kind of bucket
            yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
