"""Kills a process between a request and its answer, at a kill point that the test chooses.

The servers of the process (the double of AWS, the API server) execute each request within ``KillTrigger.around``. The request of
the kill point is the last of its process: it is not executed, or executed without an answer, or executed late, when the
successor sends the same request.
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
from support.aws.faults import ConnectionLost
from support.aws.wire import Call

#: Names of requests to the API server by purpose; calls of AWS have the names of their operations.
CREATE = "create NodeClaim"
RECORD_BATCH = "record launch batch"
RECORD_INSTANCE = "record instance"
DELETE = "delete NodeClaim"
REMOVE_FINALIZER = "remove finalizer"
#: The successor's request for the instances that its predecessor launched.
FIND_BATCH = "find instances of batch"
_LONGEST_SECONDS = 60.0
_AT_ONCE = DeleteOptions()


class RequestOutcome(StrEnum):
    """What happens to the request; its sender is killed in each case."""

    NOT_EXECUTED = "not executed"
    ANSWER_LOST = "answer lost"
    LATE = "executed late"


@dataclass(frozen=True)
class KillPoint:
    """The ``nth`` request of a kind after the trigger is armed."""

    request: str
    nth: int
    outcome: RequestOutcome

    def __str__(self) -> str:
        return f"{self.request} {self.nth} {self.outcome}"


class NotExecuted(Exception):
    """The request is not executed."""


class KillTrigger:
    """Kills a process at one kill point at a time. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kill_point: KillPoint | None = None
        self._left = 0
        self._kill: Callable[[], None] = lambda: None
        self._late: dict[str, threading.Event] = {}

    def arm(self, kill_point: KillPoint, kill: Callable[[], None]) -> None:
        """Call ``kill`` at the next occurrence of the kill point."""
        with self._lock:
            self._kill_point, self._left, self._kill = kill_point, kill_point.nth, kill

    @property
    def has_fired(self) -> bool:
        """Whether the kill point was reached and the process killed."""
        with self._lock:
            return self._kill_point is None

    def release(self, request: str) -> None:
        """Execute a held request of this kind now."""
        with self._lock:
            held = self._late.pop(request, None)
        if held is not None:
            held.set()

    def release_all(self) -> None:
        """Execute all held requests now."""
        for request in list(self._late):
            self.release(request)

    @contextmanager
    def around(self, request: str) -> Iterator[None]:
        """Context in which a request is executed. Raises ``NotExecuted`` if it must not be."""
        self.release(request)
        outcome, held = self._match(request)
        if outcome is RequestOutcome.NOT_EXECUTED:
            raise NotExecuted(request)
        if held is not None:
            held.wait(_LONGEST_SECONDS)
        try:
            yield
        finally:
            if outcome is RequestOutcome.ANSWER_LOST:
                self._fire()

    def _match(self, request: str) -> tuple[RequestOutcome | None, threading.Event | None]:
        with self._lock:
            if self._kill_point is None or self._kill_point.request != request or self._left <= 0:
                return None, None
            self._left -= 1
            if self._left:
                return None, None
            outcome = self._kill_point.outcome
            held = self._late.setdefault(request, threading.Event()) if outcome is RequestOutcome.LATE else None
        if outcome is not RequestOutcome.ANSWER_LOST:
            self._fire()
        return outcome, held

    def _fire(self) -> None:
        self._kill()
        with self._lock:
            self._kill_point = None

    def around_call(self, call: Call) -> AbstractContextManager[None]:
        """Same as ``around``, for a call of AWS."""
        return self._around_call(_kind(call))

    @contextmanager
    def _around_call(self, request: str) -> Iterator[None]:
        try:
            with self.around(request):
                yield
        except NotExecuted as error:
            raise ConnectionLost from error


def _kind(call: Call) -> str:
    template = call.parameters.get("LaunchTemplateName") or ""
    if call.parameters.get("DryRun") or template.startswith("karpenter.k8s.aws/dry-run-"):
        return ""
    asked = {entry.get("Name") for entry in call.parameters.get("Filters") or ()}
    return FIND_BATCH if f"tag:{aws_labels.LAUNCH_BATCH}" in asked else call.operation


class WatchedServer(MemoryServer):
    """An API server that executes writes of NodeClaims within ``KillTrigger.around``."""

    def __init__(self, kill_trigger: KillTrigger) -> None:
        self._kill_trigger = kill_trigger
        super().__init__(SystemClock())

    def create(self, resource: ServedResource, namespace: str, body: JsonObject) -> StoredEntry:
        """Same as the base class."""
        with self._around(CREATE if _is_claim(resource) else ""):
            return super().create(resource, namespace, body)

    def update(self, resource: ServedResource, namespace: str, name: str, change: Transform) -> StoredEntry:
        """Same as the base class."""
        with ExitStack() as stack:
            return super().update(resource, namespace, name, self._watched(resource, change, stack))

    def update_status(self, resource: ServedResource, namespace: str, name: str, change: Transform) -> StoredEntry:
        """Same as the base class."""
        with ExitStack() as stack:
            return super().update_status(resource, namespace, name, self._watched(resource, change, stack))

    def delete(
        self, resource: ServedResource, namespace: str, name: str, options: DeleteOptions = _AT_ONCE
    ) -> StoredEntry:
        """Same as the base class."""
        with self._around(DELETE if _is_claim(resource) else ""):
            return super().delete(resource, namespace, name, options)

    def _watched(self, resource: ServedResource, change: Transform, stack: ExitStack) -> Transform:
        def watched(old: JsonDict) -> JsonDict:
            before = _claim_facts(old)
            new = change(old)
            stack.enter_context(self._around(_request_of(before, _claim_facts(new)) if _is_claim(resource) else ""))
            return new

        return watched

    @contextmanager
    def _around(self, request: str) -> Iterator[None]:
        try:
            with self._kill_trigger.around(request):
                yield
        except NotExecuted as error:
            raise ServerUnavailable(f"{request}: the connection broke") from error


def _is_claim(resource: ServedResource) -> bool:
    return resource.kind.plural == NODE_CLAIM.plural


def _claim_facts(claim: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Launch batch, instance, and whether the NodeClaim has finalizers."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    notes = metadata.get("annotations") or {}
    return notes.get(aws_labels.LAUNCH_BATCH, ""), status.get("providerID", ""), bool(metadata.get("finalizers"))


def _request_of(before: tuple[str, str, bool], after: tuple[str, str, bool]) -> str:
    changed = (old != new for old, new in zip(before, after, strict=True))
    return next(
        (name for name, is_it in zip((RECORD_BATCH, RECORD_INSTANCE, REMOVE_FINALIZER), changed, strict=True) if is_it),
        "",
    )
