"""A server that speaks list and watch like the API server of Kubernetes, over real sockets.

Objects have resource versions from one counter. A list comes in pages and a watch as chunked lines of JSON, with bookmarks.
A test can forget the history, so that an old version is answered with 410, break connections in the middle of a line, and
kill the server and start it again on the same port.
"""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

GROUP = "kagent.dev"
KINDS = {
    "v1alpha1": {
        "agents": "Agent", "mcpservers": "MCPServer", "memories": "Memory", "modelconfigs": "ModelConfig",
        "toolservers": "ToolServer",
    },
    "v1alpha2": {
        "agents": "Agent", "modelconfigs": "ModelConfig", "modelproviderconfigs": "ModelProviderConfig",
        "remotemcpservers": "RemoteMCPServer",
    },
}  # fmt: skip
TOKEN = "a token of a service account"
Key = tuple[str, str, str]


class ApiServer:
    """The objects of a cluster, and the server that serves them. It keeps them while the server is stopped."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.version = 1
        self.objects: dict[Key, dict[str, Any]] = {}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.forgotten = 0
        self.secrets: dict[tuple[str, str, str], dict[str, str]] = {}
        self.kinds = {version: dict(kinds) for version, kinds in KINDS.items()}
        self.requests: list[str] = []
        self.gone_as_status = False
        """Whether a forgotten version is answered with the status 410 instead of an event."""
        self.cut_after: int | None = None
        """Bytes of the next event after which the connection breaks."""
        self.epoch = 0
        self.watches = 0
        self._sockets: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    def start(self) -> None:
        """Serve, on the same port as before."""
        owner = self

        class Handler(_Handler):
            api = owner

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def get_request(self) -> Any:
                request = super().get_request()
                owner._sockets.add(request[0])
                return request

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A broken connection is what the tests are about."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def kill(self) -> None:
        """Stop to serve and break all connections."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self.break_connections()

    def break_connections(self) -> None:
        """Break all connections, without an end of their answers."""
        with self.changed:
            self.epoch += 1
            self.changed.notify_all()
        for item in [*self._sockets]:
            self._sockets.discard(item)
            try:
                item.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def put(self, kind: str, name: str, spec: dict[str, Any], *, namespace: str = "kagent", version: str = "") -> None:
        """Create or change an object."""
        api_version = version or next(item for item in ("v1alpha2", "v1alpha1") if kind in KINDS[item].values())
        plural = next(plural for plural, item in KINDS[api_version].items() if item == kind)
        with self.changed:
            self.version += 1
            event = "MODIFIED" if (plural, namespace, name) in self.objects else "ADDED"
            item = {
                "apiVersion": f"{GROUP}/{api_version}",
                "kind": kind,
                "metadata": {"name": name, "namespace": namespace, "resourceVersion": str(self.version), "uid": name},
                "spec": spec,
            }
            self.objects[plural, namespace, name] = item
            self._happened(event, plural, item)

    def delete(self, kind: str, name: str, *, namespace: str = "kagent") -> None:
        """Delete an object."""
        plural = next(plural for kinds in KINDS.values() for plural, item in kinds.items() if item == kind)
        with self.changed:
            self.version += 1
            item = self.objects.pop((plural, namespace, name))
            item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
            self._happened("DELETED", plural, item)

    def bookmark(self) -> None:
        """Send every watch the current version without a change."""
        with self.changed:
            self.version += 1
            for plural in {plural for kinds in KINDS.values() for plural in kinds}:
                item = {"kind": "", "metadata": {"resourceVersion": str(self.version)}}
                self.history.append((self.version, "BOOKMARK", plural, item))
            self.changed.notify_all()

    def forget(self) -> None:
        """Forget what happened so far: a watch from an earlier version is answered with 410."""
        with self.changed:
            self.forgotten = self.version
            self.history.clear()

    def _happened(self, event: str, plural: str, item: dict[str, Any]) -> None:
        self.history.append((self.version, event, plural, item))
        self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ApiServer

    def log_message(self, format: str, *args: Any) -> None:
        """Tests print nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.api.requests.append(self.path)
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"kind": "Status", "code": 401})
        parts = url.path.strip("/").split("/")
        if parts[:2] == ["api", "v1"] and len(parts) == 6:
            return self._value(parts[4], parts[3], parts[5])
        if parts[:2] == ["apis", GROUP] and len(parts) == 3:
            return self._kinds(parts[2])
        namespace = parts[4] if len(parts) == 6 and parts[3] == "namespaces" else ""
        if parts[-1] not in self.api.kinds.get(parts[2], {}):
            return self._answer(404, {"kind": "Status", "code": 404})
        if query.get("watch", "").lower() == "true":
            return self._watch(parts[-1], namespace, query)
        return self._list(parts[-1], namespace, query)

    def _kinds(self, version: str) -> None:
        kinds = self.api.kinds.get(version)
        if kinds is None:
            return self._answer(404, {"kind": "Status", "code": 404})
        resources = [{"name": plural, "kind": kind, "namespaced": True} for plural, kind in kinds.items()]
        return self._answer(200, {"kind": "APIResourceList", "resources": resources})

    def _value(self, kind: str, namespace: str, name: str) -> None:
        data = self.api.secrets.get((kind, namespace, name))
        if data is None:
            return self._answer(404, {"kind": "Status", "code": 404})
        if kind == "secrets":
            data = {key: b64encode(value.encode()).decode() for key, value in data.items()}
        return self._answer(200, {"metadata": {"name": name, "namespace": namespace}, "data": data})

    def _list(self, plural: str, namespace: str, query: dict[str, str]) -> None:
        with self.api.changed:
            items = [
                item
                for (kind, place, _), item in sorted(self.api.objects.items())
                if kind == plural and namespace in ("", place)
            ]
            version = self.api.version
        first, limit = int(query.get("continue", "0")), int(query.get("limit", "500"))
        more = str(first + limit) if first + limit < len(items) else ""
        metadata = {"resourceVersion": str(version), "continue": more}
        self._answer(200, {"kind": "List", "metadata": metadata, "items": items[first : first + limit]})

    def _watch(self, plural: str, namespace: str, query: dict[str, str]) -> None:
        api, since = self.api, int(query["resourceVersion"])
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "metadata": {}}
        if since < api.forgotten and api.gone_as_status:
            return self._answer(410, gone)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        epoch = api.epoch
        if since < api.forgotten:
            self._event("ERROR", gone)
            return self._end()
        with api.changed:
            api.watches += 1
            api.changed.notify_all()
        while True:
            with api.changed:
                if not api.changed.wait_for(lambda since=since: api.epoch != epoch or api.version > since, timeout=30):
                    return self._end()
                if api.epoch != epoch:
                    return None
                events = [entry for entry in api.history if entry[0] > since]
                since = api.version
            for _, kind, name, item in events:
                if name == plural and namespace in ("", item["metadata"].get("namespace", namespace)):
                    self._event(kind, item)

    def _event(self, kind: str, item: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        if self.api.cut_after is not None:
            cut, self.api.cut_after = self.api.cut_after, None
            self._chunk(line[:cut])
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        half = len(line) // 2  # a line may arrive in several chunks
        self._chunk(line[:half])
        self._chunk(line[half:])

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
