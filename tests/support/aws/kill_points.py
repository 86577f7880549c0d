"""A process that is killed between a request and its answer, at a moment that was chosen before.

Whoever answers the process (the double of AWS, the API server) goes ``around`` the ambush with each request. The one that the
ambush waits for is the last of its process: it is never carried out, or carried out and nobody hears of it, or it arrives when
the successor is asking for the same already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import ServerUnavailable
from karpenter.kube.protocol import JsonObject
from karpenter.model.clock import SystemClock
from karpenter.providers.aws import aws_labels
from karpenter.simulation.apiserver import DeleteOptions, MemoryServer, ServedResource, StoredEntry
from karpenter.simulation.apiserver.object_store import JsonDict, Transform
from support.aws.faults import Lost
from support.aws.wire import Call

#: Requests to the API server, by what they are for; calls of AWS go by the names of their operations.
CREATE = "create claim"
MARK = "write the purchase down"
TELL = "write the machine down"
DELETE = "delete claim"
LET_GO = "let the claim go"
#: The successor's question for what its predecessor bought.
LOOK_BACK = "look for the machines of a purchase"
_LONGEST_SECONDS = 60.0
_AT_ONCE = DeleteOptions()


class Fate(StrEnum):
    """What becomes of the request; its sender dies in any case."""

    NEVER = "never carried out"
    UNHEARD = "carried out unheard"
    LATE = "carried out late"


@dataclass(frozen=True)
class Moment:
    """The ``nth`` request of a kind from when the ambush is laid."""

    request: str
    nth: int
    fate: Fate

    def __str__(self) -> str:
        return f"{self.request} {self.nth} {self.fate}"


class CutOff(Exception):
    """The request is not carried out."""


class Ambush:
    """Waits for one moment at a time. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        self._left = 0
        self._kill: Callable[[], None] = lambda: None
        self._late: dict[str, threading.Event] = {}

    def lay(self, moment: Moment, kill: Callable[[], None]) -> None:
        """From now on."""
        with self._lock:
            self._moment, self._left, self._kill = moment, moment.nth, kill

    @property
    def is_sprung(self) -> bool:
        """Whether the moment came and the process is dead."""
        with self._lock:
            return self._moment is None

    def release(self, request: str) -> None:
        """Have a late request of this kind carried out now."""
        with self._lock:
            held = self._late.pop(request, None)
        if held is not None:
            held.set()

    def release_all(self) -> None:
        """Have every late request carried out now."""
        for request in list(self._late):
            self.release(request)

    @contextmanager
    def around(self, request: str) -> Iterator[None]:
        """Carry a request out within. Raises ``CutOff`` where it is not to be."""
        self.release(request)
        fate, held = self._meet(request)
        if fate is Fate.NEVER:
            raise CutOff(request)
        if held is not None:
            held.wait(_LONGEST_SECONDS)
        try:
            yield
        finally:
            if fate is Fate.UNHEARD:
                self._strike()

    def _meet(self, request: str) -> tuple[Fate | None, threading.Event | None]:
        with self._lock:
            if self._moment is None or self._moment.request != request or self._left <= 0:
                return None, None
            self._left -= 1
            if self._left:
                return None, None
            fate = self._moment.fate
            held = self._late.setdefault(request, threading.Event()) if fate is Fate.LATE else None
        if fate is not Fate.UNHEARD:
            self._strike()
        return fate, held

    def _strike(self) -> None:
        self._kill()
        with self._lock:
            self._moment = None

    def around_call(self, call: Call) -> AbstractContextManager[None]:
        """As ``around``, for a call of AWS."""
        return self._around_call(_kind(call))

    @contextmanager
    def _around_call(self, request: str) -> Iterator[None]:
        try:
            with self.around(request):
                yield
        except CutOff as error:
            raise Lost from error


def _kind(call: Call) -> str:
    template = call.parameters.get("LaunchTemplateName") or ""
    if call.parameters.get("DryRun") or template.startswith("karpenter.k8s.aws/dry-run-"):
        return ""
    asked = {entry.get("Name") for entry in call.parameters.get("Filters") or ()}
    return LOOK_BACK if f"tag:{aws_labels.LAUNCH_BATCH}" in asked else call.operation


class WatchedServer(MemoryServer):
    """An API server whose writes to claims go around an ambush."""

    def __init__(self, ambush: Ambush) -> None:
        self._ambush = ambush
        super().__init__(SystemClock())

    def create(self, resource: ServedResource, namespace: str, body: JsonObject) -> StoredEntry:
        """As the base."""
        with self._around(CREATE if _is_claim(resource) else ""):
            return super().create(resource, namespace, body)

    def update(self, resource: ServedResource, namespace: str, name: str, change: Transform) -> StoredEntry:
        """As the base."""
        with ExitStack() as stack:
            return super().update(resource, namespace, name, self._watched(resource, change, stack))

    def update_status(self, resource: ServedResource, namespace: str, name: str, change: Transform) -> StoredEntry:
        """As the base."""
        with ExitStack() as stack:
            return super().update_status(resource, namespace, name, self._watched(resource, change, stack))

    def delete(
        self, resource: ServedResource, namespace: str, name: str, options: DeleteOptions = _AT_ONCE
    ) -> StoredEntry:
        """As the base."""
        with self._around(DELETE if _is_claim(resource) else ""):
            return super().delete(resource, namespace, name, options)

    def _watched(self, resource: ServedResource, change: Transform, stack: ExitStack) -> Transform:
        def watched(old: JsonDict) -> JsonDict:
            before = _said(old)
            new = change(old)
            stack.enter_context(self._around(_purpose(before, _said(new)) if _is_claim(resource) else ""))
            return new

        return watched

    @contextmanager
    def _around(self, request: str) -> Iterator[None]:
        try:
            with self._ambush.around(request):
                yield
        except CutOff as error:
            raise ServerUnavailable(f"{request}: the connection broke") from error


def _is_claim(resource: ServedResource) -> bool:
    return resource.kind.plural == NODE_CLAIM.plural


def _said(claim: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Purchase, machine, and whether anything holds the claim."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    notes = metadata.get("annotations") or {}
    return notes.get(aws_labels.LAUNCH_BATCH, ""), status.get("providerID", ""), bool(metadata.get("finalizers"))


def _purpose(before: tuple[str, str, bool], after: tuple[str, str, bool]) -> str:
    changed = (old != new for old, new in zip(before, after, strict=True))
    return next((name for name, is_it in zip((MARK, TELL, LET_GO), changed, strict=True) if is_it), "")
