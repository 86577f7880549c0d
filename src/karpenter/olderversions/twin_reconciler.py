"""Keeps the twins of Provisioners, Machines and AWSNodeTemplates in step with them (API-852 to API-856).

One pass over an older object converts it, creates or changes its twins, and writes whether they are ready into its status. An
object of ``v1`` with the same name that this controller did not create is never touched. Deleting the older object deletes its
twins: they belong to it, and the garbage collector of Kubernetes follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import cast

import msgspec

from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL, Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire, WireResources
from karpenter.api.older_kinds import (
    AWS_NODE_TEMPLATE,
    MACHINE,
    PROVISIONER,
    OlderMachine,
    OlderNodeTemplate,
    OlderProvisioner,
    OlderStatus,
)
from karpenter.controller_context import ControllerContext
from karpenter.conversion.json_fields import Json, object_field
from karpenter.conversion.options import ConversionOptions
from karpenter.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions
from karpenter.model import resources as res
from karpenter.olderversions.twins import CONVERTED_FROM, Twins, origin, twins_of
from karpenter.runtime.events import InvolvedObject, ObjectEvent
from karpenter.runtime.patching import merge_patch

OlderObject = OlderProvisioner | OlderMachine | OlderNodeTemplate
ACTIVE = "Active"
SHADOWED = "Shadowed"
_NOT_READY = "NotReady"
CONVERSION_FAILED = "ConversionFailed"
CONVERSION_WARNING = "ConversionWarning"
OLDER_KINDS: Mapping[str, Kind[OlderObject]] = {
    kind.name: cast("Kind[OlderObject]", kind) for kind in (PROVISIONER, MACHINE, AWS_NODE_TEMPLATE)
}
_TWIN_KINDS = {kind.name: cast("Kind[Wire]", kind) for kind in (NODE_POOL, NODE_CLAIM, EC2_NODE_CLASS)}
#: Pauses between two passes: while the twins are not ready, and then, because a twin may be deleted.
_WAITING_SECONDS = 5.0
_CHECK_SECONDS = 60.0
_LAUNCHED_BEFORE = (
    "an older release launched the instance {provider_id}, and a NodeClaim would launch another one: "
    "drain its node, then delete both"
)


class TwinReconciler:
    """Reconciles older objects by kind and name. ``options`` are what ``karpenter convert`` takes from its flags."""

    def __init__(self, context: ControllerContext, options: Callable[[], ConversionOptions]) -> None:
        self._context = context
        self._options = options

    async def reconcile(self, key: tuple[str, str]) -> float | None:
        """Bring the twins of one object in step; returns the seconds until the next reconcile. Raises ``KubeError``."""
        kind = OLDER_KINDS[key[0]]
        try:
            older = await self._context.kube.get(kind, key[1])
        except NotFound:
            return None
        if older.metadata.deletion_timestamp is not None:
            return None
        if isinstance(older, OlderMachine) and await self._delete_with_claim(older):
            return None
        content = cast(Json, msgspec.json.decode(kind.encode(older)))
        twins = self._twins(older, content)
        active = await self._active(content, twins)
        self._publish_warnings(kind, older.metadata, twins)
        await self._write_status(kind, older, active, content)
        return _CHECK_SECONDS if active.status == conditions.TRUE else _WAITING_SECONDS

    async def _delete_with_claim(self, machine: OlderMachine) -> bool:
        """Delete a Machine whose NodeClaim is gone: its instance has ended, and another one is not wanted."""
        active = conditions.find_condition(machine.status.conditions, ACTIVE)
        if active is None or active.reason not in (ACTIVE, _NOT_READY):
            return False
        try:
            await self._context.kube.get(NODE_CLAIM, machine.metadata.name)
        except NotFound:
            await self._context.kube.delete(MACHINE, machine.metadata.name, uid=machine.metadata.uid)
            return True
        return False

    def _twins(self, older: OlderObject, content: Json) -> Twins:
        if isinstance(older, OlderMachine) and older.status.provider_id:
            return Twins((), error=_LAUNCHED_BEFORE.format(provider_id=older.status.provider_id))
        return twins_of(content, self._options())

    async def _active(self, content: Json, twins: Twins) -> Condition:
        """Write the twins; the condition says what came of it."""
        if twins.error:
            return _inactive(CONVERSION_FAILED, twins.error)
        readiness = []
        for twin in twins.objects:
            try:
                stored = await self._keep(twin, origin(content))
            except Invalid as error:
                return _inactive(CONVERSION_FAILED, str(error))
            if stored is None:
                text = f"{twin['kind']} {_name(twin)} exists and was not made from this object"
                return _inactive(SHADOWED, text)
            readiness.append(stored)
        return _as_active(readiness)

    async def _keep(self, twin: Json, made_from: str) -> Wire | None:
        """The stored twin after creating or changing it; None where another object has its name (API-853)."""
        kind = _TWIN_KINDS[str(twin["kind"])]
        wanted = kind.decode(msgspec.json.encode(twin))
        try:
            stored = await self._context.kube.get(kind, _name(twin))
        except NotFound:
            try:
                return await self._context.kube.create(kind, wanted)
            except AlreadyExists as error:
                raise Conflict(str(error)) from error
        metadata = _metadata(stored)
        if metadata.annotations.get(CONVERTED_FROM) != made_from:
            return None
        patch = _spec_patch(stored, wanted)
        if not patch or kind.name == NODE_CLAIM.name:
            return stored
        return await self._context.kube.patch(kind, metadata.name, patch, resource_version=metadata.resource_version)

    def _publish_warnings(self, kind: Kind[OlderObject], metadata: ObjectMeta, twins: Twins) -> None:
        """Events say what the conversion changed (API-854)."""
        about = InvolvedObject(kind, metadata)
        events = [ObjectEvent(about, "Warning", CONVERSION_WARNING, text, (text,)) for text in twins.warnings]
        self._context.events.publish(*events)

    async def _write_status(
        self, kind: Kind[OlderObject], older: OlderObject, active: Condition, content: Json
    ) -> None:
        """Active, and what the pool's nodes use (API-856)."""
        now = self._context.clock.now()
        after = conditions.set_rootless_condition(older.status.conditions, active, older.metadata.generation, now)
        status = msgspec.structs.replace(older.status, conditions=after)
        pool = self._context.state.pool(older.metadata.name) if kind.name == PROVISIONER.name else None
        if pool is not None and pool.metadata.annotations.get(CONVERTED_FROM) == origin(content):
            status = with_pool_resources(status, pool.status.resources, now)
        patch = merge_patch(older.status, status)
        if patch:
            wanted: JsonObject = {"status": patch}
            await self._context.kube.patch(
                kind,
                older.metadata.name,
                wanted,
                subresource="status",
                resource_version=older.metadata.resource_version,
            )


def _inactive(reason: str, message: str) -> Condition:
    return Condition(type=ACTIVE, status=conditions.FALSE, reason=reason, message=message)


def _as_active(twins: list[Wire]) -> Condition:
    """True while every twin is ready, else the reason of the first that is not."""
    for twin in twins:
        ready = conditions.find_condition(_conditions(twin), conditions.READY)
        if ready is None or ready.status != conditions.TRUE:
            message = ready.message if ready is not None else "its v1 form is not ready yet"
            return _inactive(_NOT_READY, message)
    return Condition(type=ACTIVE, status=conditions.TRUE, reason=ACTIVE)


def _conditions(twin: Wire) -> tuple[Condition, ...]:
    status = getattr(twin, "status", None)
    return cast("tuple[Condition, ...]", getattr(status, "conditions", ()))


def _metadata(obj: Wire) -> ObjectMeta:
    return cast(ObjectMeta, obj.metadata)  # type: ignore[attr-defined]  # every kind has it


def _name(twin: Json) -> str:
    return str(object_field(twin, "metadata", "")["name"])


def _spec_patch(stored: Wire, wanted: Wire) -> JsonObject:
    """What makes the stored ``spec`` the wanted one, defaults of the server left alone."""
    before, after = stored.spec, wanted.spec  # type: ignore[attr-defined]  # every twin has one
    patch = merge_patch(before, after)
    return {"spec": patch} if patch else {}


def with_pool_resources(status: OlderStatus, resources: WireResources, now: datetime) -> OlderStatus:
    """A Provisioner's status with its pool's resources (API-856); ``lastScaleTime`` is ``now`` where the node count changed.

    The number of nodes is kept in the status, so a new leader sees a change that happened before it led.
    """
    has_scaled = _nodes(status.resources) != _nodes(resources)
    last_scale_time = now.replace(microsecond=0) if has_scaled else status.last_scale_time
    return msgspec.structs.replace(status, resources=resources, last_scale_time=last_scale_time)


def _nodes(resources: WireResources) -> str:
    return str(resources.get(res.NODES, "0"))
