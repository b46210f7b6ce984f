"""As much of Kubernetes' API as Spark asks for executors: a pod that it makes is started as a process of this machine.

What a pod's container would run is run here, with the environment that the pod says, in an empty directory. Everything listens on
loopback addresses. Nobody is told of changes (a watch stays silent), so Spark looks at the list now and then.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

import pyspark

from tests.servers.child import HOST, ChildProcess, PrivateDirectory

DRIVER_POD = "driver"

_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
_DELETED = {"kind": "Status", "apiVersion": "v1", "status": "Success"}


class KubernetesApi:
    """``entrypoint`` is the one of the executors' image. Leaving the context ends all pods."""

    def __init__(self, entrypoint: Sequence[str]) -> None:
        self.pods: dict[str, Any] = {DRIVER_POD: _ready({"metadata": {"name": DRIVER_POD, "uid": "0"}}, HOST)}
        self._entrypoint = entrypoint
        self._processes: dict[str, ChildProcess] = {}
        self._directory = PrivateDirectory("pods")
        self._addresses = itertools.count(2)
        self._lock = threading.Lock()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self._server.daemon_threads = True

    @property
    def master(self) -> str:
        return f"k8s://http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        if kind is not None:
            print(self.log()[-4000:])
        self.remove_executors()
        self._directory.remove()

    def log(self) -> str:
        """What all executors said."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._directory.path.glob("*.log")))

    def executors(self) -> list[dict[str, Any]]:
        with self._lock:
            return [pod for name, pod in self.pods.items() if name != DRIVER_POD]

    def add(self, pod: dict[str, Any]) -> None:
        name, address = pod["metadata"]["name"], f"127.0.0.{next(self._addresses)}"
        container = pod["spec"]["containers"][0]
        told = {"status.podIP": address, "metadata.name": name}
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        }
        for entry in container["env"]:
            source = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environment[entry["name"]] = told[source] if source else entry["value"]
        work = self._directory.path / name
        work.mkdir()
        environment["SPARK_LOCAL_DIRS"] = str(work / "local")  # a volume of the pod
        command = [*self._entrypoint, *container["args"]]
        with self._lock:
            log = self._directory.path / f"{name}.log"
            self._processes[name] = ChildProcess(command, log_path=log, env=environment, cwd=work)
            self.pods[name] = _ready(pod, address)

    def remove_executors(self) -> None:
        with self._lock:
            for name, process in self._processes.items():
                process.kill()
                self.pods.pop(name, None)
            self._processes.clear()


def _ready(pod: dict[str, Any], address: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}]
    return (
        {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": []}}
        | pod
        | {"status": {"phase": "Running", "podIP": address, "conditions": conditions}}
    )


class _Handler(BaseHTTPRequestHandler):
    api: ClassVar[KubernetesApi]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Not on our standard error."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        *_, kind, name = url.path.split("/")
        if "watch" in parse_qs(url.query):
            self._stay_silent()
        elif kind == "pods":
            pod = self.api.pods.get(name)
            self._answer(pod or _NOT_FOUND, 200 if pod else 404)
        else:
            items = self.api.executors() if name == "pods" else []
            self._answer({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})

    def do_POST(self) -> None:
        made = self._body()
        made["metadata"] |= {"uid": made["metadata"].get("name", ""), "resourceVersion": "1"}
        if urlsplit(self.path).path.endswith("/pods"):
            self.api.add(made)
        self._answer(made, 201)

    def do_PATCH(self) -> None:
        self._body()
        self._answer(self.api.pods.get(urlsplit(self.path).path.rpartition("/")[2], _DELETED))

    def do_DELETE(self) -> None:
        self._body()
        if "/pods" in self.path:
            self.api.remove_executors()
        self._answer(_DELETED)

    def _body(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length", 0))
        return dict(json.loads(self.rfile.read(size))) if size else {}

    def _answer(self, document: Any, status: int = 200) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stay_silent(self) -> None:
        """A WebSocket without a message."""
        key = self.headers["Sec-WebSocket-Key"] + _WEBSOCKET
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        self.api.closing.wait()
