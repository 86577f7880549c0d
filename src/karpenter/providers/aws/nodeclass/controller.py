"""The look at a class: its parts in order, one write, and its end (AWS-080 to AWS-084, AWS-123)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import structlog
from msgspec.structs import replace

from karpenter.api.ec2 import EC2NodeClass, EC2NodeClassStatus
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.api.meta import Condition
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Json, JsonObject, Writer
from karpenter.kube.workqueue import Queue
from karpenter.model import conditions
from karpenter.model.clock import Clock
from karpenter.model.conditions import ConditionTypes
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass.hashing import Editions
from karpenter.providers.aws.nodeclass.stamping import Stamps
from karpenter.providers.aws.nodeclass.termination import FINALIZER, Termination
from karpenter.providers.aws.nodeclass.told import Part, Told, unknown
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.contract import ProviderError

_AT_ONCE = 10
#: How soon to look again at a class somebody else wrote in between.
_CHANGED_MEANWHILE_SECONDS = 0.2
_log = structlog.get_logger()


class LookFailed(ProviderError):
    """Parts of a look at a class failed; the others were carried out and written."""


@dataclass(frozen=True)
class Surroundings:
    """What a look needs besides its parts.

    ``find`` gives a class as a watch last told it, ``cluster`` the cluster as it is now; ``types`` are the conditions of a class.
    """

    kube: Writer
    clock: Clock
    types: ConditionTypes
    find: Callable[[str], EC2NodeClass | None]
    cluster: Callable[[], Cluster]


class NodeClassController:
    """Keeps EC2NodeClasses up to date. ``parts`` run in this order."""

    def __init__(
        self,
        around: Surroundings,
        parts: Sequence[Part],
        stamps: Stamps,
        editions: Editions,
        termination: Termination,
    ) -> None:
        self._around = around
        self._parts = tuple(parts)
        self._stamps = stamps
        self._editions = editions
        self._termination = termination
        self._queue: Queue[str] = Queue(self.look, _AT_ONCE, _report)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def add(self, name: str) -> None:
        """Look at a class as soon as may be."""
        self._queue.add(name)

    def node_class(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        """A class appeared, changed or went (AWS-080)."""
        found = new or old
        if found is not None:
            self.add(found.metadata.name)

    def claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A claim appeared, changed or went: the last, the class may be waiting for (AWS-080)."""
        if old is not None and new is None and old.spec.node_class_ref.kind == EC2_NODE_CLASS.name:
            self.add(old.spec.node_class_ref.name)

    async def look(self, name: str) -> float | None:
        """Bring one class up to date; seconds until the next look, None to wait for events.

        Raises ``LookFailed``, ``AwsError`` and ``KubeError``.
        """
        node_class = self._around.find(name)
        if node_class is None:
            self._editions.forget(name)
            return None
        try:
            if node_class.metadata.deletion_timestamp is not None:
                return await self._end(node_class)
            return await self._keep(await self._held(node_class))
        except Conflict:
            return _CHANGED_MEANWHILE_SECONDS
        except NotFound:
            return None

    async def _end(self, node_class: EC2NodeClass) -> float | None:
        lifted = self._initialised(node_class)
        return await self._termination.look(await self._write(node_class, lifted.status))

    async def _held(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """The class with our finalizer (AWS-081)."""
        meta = node_class.metadata
        if FINALIZER in meta.finalizers:
            return node_class
        patch = {"metadata": {"finalizers": [*meta.finalizers, FINALIZER]}}
        return await self._around.kube.patch(EC2_NODE_CLASS, meta.name, patch, resource_version=meta.resource_version)

    async def _keep(self, node_class: EC2NodeClass) -> float | None:
        cluster = self._around.cluster()
        # Stamped before it can be ready: what is bought of this edition must not carry the hash of the one before.
        stamped = await self._stamps.put(node_class, cluster)
        self._editions.remember(stamped, cluster)
        found, told = await self._run(stamped)
        written = await self._write(stamped, found.status)
        faults = [item.fault for item in told if item.fault is not None]
        if faults:
            raise LookFailed("; ".join(map(str, faults))) from faults[0]
        final = [item.condition for item in told if item.final and item.condition is not None]
        if final:
            _tell(written, final)
            return None
        return min((item.again_seconds for item in told if item.again_seconds is not None), default=None)

    async def _run(self, node_class: EC2NodeClass) -> tuple[EC2NodeClass, list[Told]]:
        """All parts, also after one that failed (AWS-082): the class as each left it to the next, and what they told."""
        found = self._initialised(node_class)
        told: list[Told] = []
        for part in self._parts:
            try:
                told.append(await part.look(found))
            except (AwsError, ProviderError) as error:
                told.append(Told(found.status, fault=error))
            found = self._with(found, part, told[-1])
        return found, told

    def _with(self, node_class: EC2NodeClass, part: Part, told: Told) -> EC2NodeClass:
        current = node_class.status.conditions
        wish = told.condition or _why_waiting(current, part.condition, told.fault)
        if wish is not None:
            owner = conditions.owner(self._around.types, node_class.metadata, self._around.clock.now())
            current = conditions.put(current, wish, owner)
        return replace(node_class, status=replace(told.status, conditions=current))

    def _initialised(self, node_class: EC2NodeClass) -> EC2NodeClass:
        owner = conditions.owner(self._around.types, node_class.metadata, self._around.clock.now())
        # The condition of a gate that was switched off since would stay for ever.
        kept = [item for item in node_class.status.conditions if item.type in self._around.types.all]
        found = conditions.initialise(kept, owner)
        return replace(node_class, status=replace(node_class.status, conditions=found))

    async def _write(self, node_class: EC2NodeClass, status: EC2NodeClassStatus) -> EC2NodeClass:
        """Write a status, if it differs, over the one it was made from (AWS-083)."""
        patch = _difference(node_class.status, status)
        if not patch:
            return node_class
        meta = node_class.metadata
        return await self._around.kube.patch(
            EC2_NODE_CLASS, meta.name, {"status": patch}, subresource="status", resource_version=meta.resource_version
        )


def _why_waiting(current: Sequence[Condition], type_: str, fault: Exception | None) -> Condition | None:
    """A condition that was never decided goes on waiting, but says for what; others stay as they are (AWS-084)."""
    if fault is None or conditions.status(current, type_) != conditions.UNKNOWN:
        return None
    return unknown(type_, conditions.AWAITING_RECONCILIATION, str(fault))


def _difference(before: EC2NodeClassStatus, after: EC2NodeClassStatus) -> JsonObject:
    """The merge patch between two statuses; lists are replaced whole."""
    if before == after:
        return {}
    old = cast(Mapping[str, Json], msgspec.to_builtins(before))
    new = cast(Mapping[str, Json], msgspec.to_builtins(after))
    return {key: new.get(key) for key in (*old, *new) if old.get(key) != new.get(key)}


def _tell(node_class: EC2NodeClass, final: Sequence[Condition]) -> None:
    for condition in final:
        told = {"EC2NodeClass": {"name": node_class.metadata.name}, "reason": condition.reason}
        _log.error("nodeclass cannot be used until it is changed", error=condition.message, **told)


def _report(name: str, error: Exception) -> None:
    _log.error("Reconciler error", EC2NodeClass={"name": name}, error=str(error))
