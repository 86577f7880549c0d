"""The audit log of the API server: the rights that ServiceAccounts used, and the answers they got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

#: One line per call of a ServiceAccount, without bodies; nobody else's calls.
POLICY: Mapping[str, object] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the right it needed, on what, and the answer. ``resource`` includes a subresource (``pods/status``)."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    path: str
    status: int
    message: str

    @property
    def is_refused(self) -> bool:
        """Whether the caller was not allowed to."""
        return self.status == _FORBIDDEN


class _Object(msgspec.Struct, rename="camel", frozen=True):
    resource: str = ""
    subresource: str = ""
    api_group: str = ""
    namespace: str = ""
    name: str = ""


class _Answer(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str


class _Event(msgspec.Struct, rename="camel", frozen=True):
    verb: str
    user: _User
    request_uri: str = msgspec.field(name="requestURI")
    object_ref: _Object = _Object()
    response_status: _Answer = _Answer()


def calls(log: Path, user: str) -> list[Call]:
    """The calls of one user, in order. A watch is there twice, once when it starts and once when it ends."""
    # The last line may be half written.
    complete = log.read_bytes().rpartition(b"\n")[0].splitlines()
    events = (msgspec.json.decode(line, type=_Event) for line in complete)
    return [_call(event) for event in events if event.user.username == user]


def _call(event: _Event) -> Call:
    about, answer = event.object_ref, event.response_status
    resource = f"{about.resource}/{about.subresource}" if about.subresource else about.resource
    where = (about.namespace, about.name, event.request_uri)
    return Call(event.verb, about.api_group, resource, *where, answer.code, answer.message)
