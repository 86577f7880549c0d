"""A real control plane for tests: etcd and kube-apiserver, with kube-scheduler and kube-controller-manager on request.

Everything listens on loopback ports chosen at run time and keeps its data in a temporary folder. Nothing outlives the test
run: the processes die with their parent even when it is killed (Linux), and are stopped at exit everywhere else. Start
a ``ControlPlane`` from the main thread: "parent" means the thread that started them.

Users: ``admin`` may do everything; ``nobody`` may do nothing until a test binds a role to it (RBAC is on). The controller gets
a ServiceAccount and exactly its rights from ``controlplane.deployed``; what ServiceAccounts ask for is kept in an audit log
(``calls``). Pods need no ServiceAccount here.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane import audit, binaries
from controlplane.persistent_connections import PersistentConnections
from controlplane.ports import free_port
from controlplane.timeouts import scaled_timeout

if TYPE_CHECKING:
    from karpenter.kube.client import KubeClient

Json = dict[str, Any]

ADMIN = "admin"
#: User name to groups.
USERS: Mapping[str, str] = {ADMIN: "system:masters", "nobody": ""}

_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
#: Part of the 429 for a kind whose storage is being set up.
_STORAGE_STARTS = "storage is (re)initializing"
#: Namespaces every cluster has, which appear shortly after the server does.
_NAMESPACES = ("default", "kube-system", "kube-node-lease")
_CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "daemonset-controller",
    "statefulset-controller",
    "job-controller",
    "disruption-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "clusterrole-aggregation-controller",
)
#: Go collects garbage when the heap has grown fivefold instead of twofold: a third less CPU for a start and for our definitions.
_LAZY_COLLECTION = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
_CLIENT_SPEED = ("--kube-api-qps=500", "--kube-api-burst=1000", "--leader-elect=false", "--secure-port=0")


class NotReady(Exception):
    """The control plane did not come up; the message holds the end of the log."""


class ApiError(Exception):
    """The API server refused a harness request."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status


@dataclass
class ControlPlane:
    """One running control plane; use as a context manager or call ``start`` and ``stop``.

    ``more_arguments`` are arguments of a program beside the usual ones; values of an argument that is a list add up.
    ``scheduler_configuration`` is kube-scheduler's configuration file but for its connection to the API server.
    """

    scheduler: bool = False
    controllers: bool = False
    more_controllers: tuple[str, ...] = ()
    more_arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scheduler_configuration: Json | None = None
    folder: Path = field(init=False)
    server: str = field(init=False, default="")
    tokens: dict[str, str] = field(init=False, default_factory=lambda: {user: secrets.token_hex(16) for user in USERS})
    _processes: list[subprocess.Popen[bytes]] = field(init=False, default_factory=list)
    _stopped_server: list[str] = field(init=False, default_factory=list)
    _etcd: str = field(init=False, default="")
    _connections: PersistentConnections = field(init=False)

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until it serves. Raises ``NotReady`` or ``binaries.BuildFailed``."""
        folder = binaries.folder()
        self.folder = Path(tempfile.mkdtemp(prefix="karpenter-controlplane-"))
        atexit.register(self.stop)
        try:
            self._etcd = self._start_etcd(folder)
            self._start_api_server(folder, self._etcd)
            self._await(self._is_serving, binaries.API_SERVER)
            self._start_clients(folder)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything and remove its data; harmless when repeated."""
        atexit.unregister(self.stop)
        for process in reversed(self._processes):
            _end(process)
        self._processes.clear()
        if self.server:
            self._connections.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pause(self) -> None:
        """Have all its processes stand still: at rest they take two to four per cent of a core."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Have them go on, and wait until the API server serves."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGCONT)
        self._await(self._is_serving, binaries.API_SERVER)

    @property
    def kubeconfig(self) -> str:
        """Path of the administrator's kubeconfig."""
        return self.kubeconfig_of(ADMIN)

    def kubeconfig_of(self, user: str) -> str:
        """Path of the kubeconfig of one of ``USERS``."""
        return self.kubeconfig_with(user, {"token": self.tokens[user]})

    def kubeconfig_with(self, name: str, credentials: Mapping[str, object]) -> str:
        """Path of a kubeconfig called ``name`` whose user has these credentials (``token``, ``tokenFile``, ``exec`` ...)."""
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(self._kubeconfig(credentials)))
        return str(path)

    def calls(self, user: str) -> list[audit.Call]:
        """The calls of a ServiceAccount to the API server so far, with their answers."""
        return audit.calls(self._audit_log, user)

    def client(self, user: str = ADMIN) -> KubeClient:
        """A new client of the product, to be closed by the caller (``async with``)."""
        from karpenter.kube import config

        return config.connect(config.load(self.kubeconfig_of(user)))

    def request(self, method: str, path: str, body: Json | None = None, content: str = "application/json") -> Json:
        """One call as administrator, outside the product. Raises ``ApiError``.

        A server that sets up the storage of a kind anew, as after a change of its CRD, is asked again, as kubectl does.
        """
        deadline = time.monotonic() + scaled_timeout(30)
        while True:
            try:
                return self._request_once(method, path, body, content)
            except ApiError as error:
                if _STORAGE_STARTS not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)

    def _request_once(self, method: str, path: str, body: Json | None, content: str) -> Json:
        headers = {"Authorization": f"Bearer {self.tokens[ADMIN]}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        answer = self._connections.call(method, path, data, headers, scaled_timeout(30))
        if not 200 <= answer.status < 300:
            raise ApiError(answer.status, answer.body.decode())
        return _as_object(answer.body)

    def apply(self, *manifests: Mapping[str, object]) -> None:
        """Server-side apply manifests of any kind, in order; CRDs are waited for until the server serves them."""
        for manifest in manifests:
            path = self._path(manifest)
            body = dict(manifest)
            self.request("PATCH", f"{path}?fieldManager=tests&force=true", body, "application/apply-patch+yaml")
            if manifest["kind"] == "CustomResourceDefinition":
                self._await(lambda path=path, body=body: self._serves(path, body), binaries.API_SERVER)

    def rehearse(self, manifest: Mapping[str, object]) -> Json:
        """What `kubectl apply --server-side --dry-run=server --validate=strict` would store. Raises ``ApiError``."""
        query = "fieldManager=tests&force=true&dryRun=All&fieldValidation=Strict"
        path = f"{self._path(manifest)}?{query}"
        return self.request("PATCH", path, dict(manifest), "application/apply-patch+yaml")

    def delete(self, *manifests: Mapping[str, object]) -> None:
        """Delete what ``apply`` made, in order. Raises ``ApiError`` where something is not there."""
        for manifest in manifests:
            self.request("DELETE", self._path(manifest))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition on the control plane holds; ``TimeoutError`` saying for what after a minute."""
        deadline = time.monotonic() + scaled_timeout(_START_SECONDS)
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited a minute for {what}")
            time.sleep(_POLL_SECONDS)

    @property
    def certificate(self) -> bytes:
        """The authority of the server's certificate, in PEM."""
        return self._certificate.read_bytes()

    @property
    def _certificate(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def _audit_log(self) -> Path:
        return self.folder / "audit.log"

    def _start_etcd(self, folder: Path) -> str:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._spawn(
            folder / binaries.ETCD,
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        return client

    def _start_api_server(self, folder: Path, etcd: str) -> None:
        tokens = self.folder / "tokens.csv"
        tokens.write_text("".join(f'{self.tokens[user]},{user},{user},"{USERS[user]}"\n' for user in USERS))
        key = self.folder / "service-account.key"
        key.write_text(_signing_key())
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(audit.POLICY))
        port = free_port()
        self.server = f"https://127.0.0.1:{port}"
        self._connections = PersistentConnections(self.server, self._certificate)
        self._spawn(
            folder / binaries.API_SERVER,
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self._certificate.parent}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            # Some distributions have it on: it asks for rights on an owner's finalizers (OPS-662).
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._audit_log}",
            "--audit-log-maxsize=100000",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--profiling=false",
            *self.more_arguments.get(binaries.API_SERVER, ()),
        )

    def forget_history(self) -> None:
        """Make etcd drop all versions before the present one, as the API server has it do every few minutes."""
        now = self.request("GET", "/api/v1/namespaces?limit=1")["metadata"]["resourceVersion"]
        body = json.dumps({"revision": now, "physical": True}).encode()
        with urllib.request.urlopen(f"{self._etcd}/v3/kv/compaction", body, timeout=30):
            pass

    def stop_server(self) -> None:
        """Kill kube-apiserver: connections break and its memory of old versions is gone. Its port and its data are kept."""
        running = self._api_server
        self._stopped_server = _command(running)
        _end(running)
        self._processes.remove(running)

    def pause_server(self) -> None:
        """Have kube-apiserver stand still: its connections stay open, and nothing comes any more."""
        os.kill(self._api_server.pid, signal.SIGSTOP)

    def resume_server(self) -> None:
        """Have it go on."""
        os.kill(self._api_server.pid, signal.SIGCONT)

    @property
    def _api_server(self) -> subprocess.Popen[bytes]:
        (running,) = (process for process in self._processes if _command(process)[0].endswith(binaries.API_SERVER))
        return running

    def start_server(self) -> None:
        """Start kube-apiserver again where ``stop_server`` killed it, and wait until it serves."""
        binary, *arguments = self._stopped_server
        self._spawn(Path(binary), *arguments)
        self._await(self._is_serving, binaries.API_SERVER)

    def restart_api_server(self) -> None:
        """Kill kube-apiserver and start it again on the same port."""
        self.stop_server()
        self.start_server()

    def _start_clients(self, folder: Path) -> None:
        kubeconfig = f"--kubeconfig={self.kubeconfig}"
        if self.scheduler:
            more = self.more_arguments.get(binaries.SCHEDULER, ())
            self._spawn(folder / binaries.SCHEDULER, kubeconfig, *_CLIENT_SPEED, *self._scheduler_file(), *more)
        if self.controllers:
            wanted = f"--controllers={','.join((*_CONTROLLERS, *self.more_controllers))}"
            more = self.more_arguments.get(binaries.CONTROLLER_MANAGER, ())
            self._spawn(folder / binaries.CONTROLLER_MANAGER, kubeconfig, wanted, *_CLIENT_SPEED, *more)

    def _scheduler_file(self) -> tuple[str, ...]:
        if self.scheduler_configuration is None:
            return ()
        file = self.folder / "kube-scheduler-config.json"
        connection = {"kubeconfig": self.kubeconfig, "qps": 500, "burst": 1000}
        own = {"clientConnection": connection, "leaderElection": {"leaderElect": False}}
        file.write_text(json.dumps({**self.scheduler_configuration, **own}))
        return (f"--config={file}",)

    def _spawn(self, binary: Path, *arguments: str) -> None:
        if not binary.is_file():
            raise NotReady(f"{binary} is missing; the test needs it (see KUBEBUILDER_ASSETS)")
        with (self.folder / f"{binary.name}.log").open("ab") as log:
            process = subprocess.Popen(
                [binary, *arguments],
                env={**os.environ, **_LAZY_COLLECTION},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._processes.append(process)

    def _await(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + scaled_timeout(_START_SECONDS)
        while not condition():
            ended = [process for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                failed = Path(_command(ended[0])[0]).name if ended else name
                raise NotReady(f"{failed} is not ready:\n{self.log(failed)[-3000:]}")
            time.sleep(_POLL_SECONDS)

    def log(self, name: str) -> str:
        """What one of the processes has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _is_serving(self) -> bool:
        try:
            self.request("GET", "/readyz?exclude=poststarthook/apiservice-registration-controller")
            for name in _NAMESPACES:
                self.request("GET", f"/api/v1/namespaces/{name}")
        except (ApiError, OSError):
            return False
        return True

    def _serves(self, path: str, crd: Json) -> bool:
        try:
            result = self.request("GET", path)
            spec: Json = crd["spec"]
            plural = spec["names"]["plural"]
            established = any(
                condition["type"] == "Established" and condition["status"] == "True"
                for condition in result["status"]["conditions"] or ()
            )
            # Versions that a webhook converts are served once there is one, and the controller brings it along.
            is_converted = spec.get("conversion", {}).get("strategy") == "Webhook"
            for version in spec["versions"]:
                if version["storage"] or not is_converted:
                    self.request("GET", f"/apis/{spec['group']}/{version['name']}/{plural}?limit=1")
        except (ApiError, KeyError):
            return False
        return established

    def _path(self, manifest: Mapping[str, object]) -> str:
        version, kind = str(manifest["apiVersion"]), manifest["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources: list[Json] = self.request("GET", root)["resources"]
        result = next(
            (resource for resource in resources if resource["kind"] == kind and "/" not in str(resource["name"])), None
        )
        if result is None:
            raise LookupError(f"the API server has no {kind} in {version}")
        metadata: Json = manifest["metadata"]
        scope = f"/namespaces/{metadata.get('namespace', 'default')}" if result["namespaced"] else ""
        return f"{root}{scope}/{result['name']}/{metadata['name']}"

    def _kubeconfig(self, credentials: Mapping[str, object]) -> Json:
        authority = b64encode(self._certificate.read_bytes()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "clusters": [
                {"name": "tests", "cluster": {"server": self.server, "certificate-authority-data": authority}}
            ],
            "users": [{"name": "tests", "user": dict(credentials)}],
        }


def _as_object(body: bytes) -> Json:
    """JSON of an answer; plain text such as a health check's counts as no fields."""
    return json.loads(body) if body.startswith(b"{") else {}


def _command(process: subprocess.Popen[bytes]) -> list[str]:
    return [str(part) for part in process.args]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill at once: there is no data worth a graceful end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with_parent() -> Callable[[], None] | None:
    """For ``preexec_fn``: what a child runs so that it is killed with the thread that started it (Linux; None elsewhere)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # resolved here: between fork and exec only the call is safe
    parent, set_parent_death_signal = os.getpid(), 1

    def arrange() -> None:
        prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _signing_key() -> str:
    """A fresh P-256 private key in PEM (SEC 1). The public half is left out: readers derive it."""
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    scalar = (secrets.randbelow(order - 1) + 1).to_bytes(32, "big")
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    body = b"\x02\x01\x01" + b"\x04\x20" + scalar + curve
    encoded = b64encode(b"\x30" + bytes([len(body)]) + body).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{encoded}\n-----END EC PRIVATE KEY-----\n"
