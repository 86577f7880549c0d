"""Asking a server what it would make of a write: a real one without storing anything, or one in this process."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2

from controlplane.harness import ADMIN, ControlPlane
from karpenter.api.kinds import (
    CAPACITY_BUFFER,
    CAPACITY_SCHEDULE,
    EC2_NODE_CLASS,
    KWOK_NODE_CLASS,
    MACHINE_NODE_CLASS,
    NODE_CLAIM,
    NODE_OVERLAY,
    NODE_POOL,
)
from karpenter.kube.errors import KubeError
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryServer
from karpenter.simulation.apiserver.object_store import StoredEntry
from karpenter.simulation.apiserver.served_resources import ServedResource
from support.admission_rows import Json, Row

KINDS = {
    kind.name: kind
    for kind in (
        NODE_POOL,
        NODE_CLAIM,
        KWOK_NODE_CLASS,
        EC2_NODE_CLASS,
        NODE_OVERLAY,
        CAPACITY_BUFFER,
        CAPACITY_SCHEDULE,
        MACHINE_NODE_CLASS,
    )
}
#: What servers decide on, each in its own way.
_OWN = ("uid", "creationTimestamp", "managedFields", "resourceVersion")
_SECONDS = 60


@dataclass(frozen=True)
class Write:
    """A new object, the replacement of a ``stored`` one, or of its status."""

    kind: str
    wanted: Json
    stored: Json | None = None
    is_status: bool = False

    @classmethod
    def of(cls, row: Row) -> Write:
        return cls(row.kind, row.object, row.stored, row.is_status)


@dataclass(frozen=True)
class Answer:
    """What would be stored, without what every server decides for itself; or None and the refusal."""

    stored: Json | None
    status: int = 200
    text: str = ""

    @property
    def accepted(self) -> bool:
        return self.stored is not None


def _as_stored(obj: Json, name: str) -> Answer:
    metadata: Json = {key: value for key, value in obj["metadata"].items() if key not in _OWN}
    return Answer({**obj, "metadata": {**metadata, "name": name}})


def _named(obj: Json, name: str, version: str = "") -> Json:
    metadata: Json = {**obj["metadata"], "name": name}
    return {**obj, "metadata": {**metadata, **({"resourceVersion": version} if version else {})}}


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _namespace(kind: str) -> str:
    return "default" if KINDS[kind].namespaced else ""


def in_memory(write: Write) -> Answer:
    """The answer of the in-memory API server."""
    server, kind = MemoryServer(SystemClock()), KINDS[write.kind]
    resource = server.resource(kind.group, kind.version, kind.plural)
    try:
        made = server.create(resource, _namespace(write.kind), write.wanted if write.stored is None else write.stored)
    except KubeError as error:
        return Answer(None, error.status, str(error))
    return _kept(made) if write.stored is None else _replaced(server, resource, write)


def in_memory_over(write: Write) -> Answer:
    """As ``in_memory``, where the stored object bypasses validation."""
    server, kind = MemoryServer(SystemClock()), KINDS[write.kind]
    resource = server.resource(kind.group, kind.version, kind.plural)
    assert write.stored is not None
    server.load_objects([write.stored])
    return _replaced(server, resource, write)


def _replaced(server: MemoryServer, resource: ServedResource, write: Write) -> Answer:
    assert write.stored is not None
    name = _name(write.stored)
    change = server.update_status if write.is_status else server.update
    try:
        return _kept(change(resource, _namespace(write.kind), name, lambda _old: dict(_named(write.wanted, name))))
    except KubeError as error:
        return Answer(None, error.status, str(error))


def _kept(entry: StoredEntry) -> Answer:
    return _as_stored(entry.decoded(), entry.name)


@dataclass
class RealServer:
    """A kube-apiserver that serves our kinds. Everything is a dry run, save objects that have to be there to be replaced.

    Those must be prepared before several threads ask (``prepare``).
    """

    client: httpx2.Client
    _stored: dict[str, Json] = field(default_factory=dict)

    def prepare(self, write: Write) -> None:
        """Store the object the write replaces."""
        key = json.dumps([write.kind, write.stored], sort_keys=True)
        if write.stored is None or key in self._stored:
            return
        named = _named(write.stored, f"writing-{len(self._stored)}")
        made = self.client.post(KINDS[write.kind].path(_namespace(write.kind)), json=named)
        made.raise_for_status()
        self._stored[key] = made.json()

    def answer(self, write: Write) -> Answer:
        """The answer of the server."""
        kind = KINDS[write.kind]
        if write.stored is None:
            return self._ask("POST", kind.path(_namespace(write.kind)), write.wanted, _name(write.wanted))
        stored = self._stored[json.dumps([write.kind, write.stored], sort_keys=True)]
        wanted = _named(write.wanted, _name(stored), str(stored["metadata"]["resourceVersion"]))
        path = kind.path(_namespace(write.kind), _name(stored), subresource="status" if write.is_status else "")
        return self._ask("PUT", path, wanted, _name(write.stored))

    def _ask(self, method: str, path: str, wanted: Json, name: str) -> Answer:
        response = self.client.request(method, path, params={"dryRun": "All"}, json=wanted)
        if response.is_success:
            return _as_stored(response.json(), name)
        return Answer(None, response.status_code, response.json()["message"])

    def clear(self) -> None:
        """Remove what was stored."""
        for made in self._stored.values():
            kind = str(made["kind"])
            self.client.delete(KINDS[kind].path(_namespace(kind), _name(made)))
        self._stored.clear()


@contextmanager
def real_server(control_plane: ControlPlane) -> Iterator[RealServer]:
    """The control plane's API server, which must serve our kinds already."""
    trust = ssl.create_default_context(cafile=str(control_plane.folder / "certificates" / "apiserver.crt"))
    headers = {"Authorization": f"Bearer {control_plane.tokens[ADMIN]}"}
    with httpx2.Client(base_url=control_plane.server, headers=headers, verify=trust, timeout=_SECONDS) as client:
        server = RealServer(client)
        try:
            yield server
        finally:
            server.clear()
