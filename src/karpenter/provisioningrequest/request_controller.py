"""Keeps the virtual pods and the conditions of ProvisioningRequests (docs/how-to/gangs.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from karpenter.api.core import Pod, PodTemplateSpec
from karpenter.api.kinds import POD_TEMPLATE, PROVISIONING_REQUEST
from karpenter.api.provisioning_request import CONSUME_ANNOTATION, ProvisioningRequest
from karpenter.capacitybuffer.buffer_placements import BufferPlacement, buffer_placements, nodes_with_room_now
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.informer import Informer
from karpenter.model import conditions, pods
from karpenter.model.quantity import QuantityError
from karpenter.provisioningrequest.request_decision import (
    RequestObservation,
    RequestPhase,
    decide_conditions,
    is_handled,
    request_phase,
)
from karpenter.provisioningrequest.request_pods import (
    RequestPods,
    build_request_pods,
    gang_name,
    placement_key,
    request_gang,
    without_consumed,
)
from karpenter.runtime.patching import merge_patch
from karpenter.runtime.reconciler import Reconciler
from karpenter.scheduling.explain.reason_messages import short_reason_message, unschedulable_message
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import ClusterSnapshot, pod_key
from karpenter.state.virtual_pods import MAX_PODS_PER_OBJECT, VirtualPods, buffer_key_of, is_virtual_pod

#: Pause between two passes over a request that has not ended; plans are made as often for one without room.
REQUEST_REQUEUE_SECONDS = 10.0
_WORKERS = 4


@dataclass
class _TrackedRequest:
    """A request while it is pending or booked."""

    request: ProvisioningRequest
    sets: tuple[RequestPods, ...]
    last_trigger: datetime
    placement: BufferPlacement | None = None
    lost_since: datetime | None = None
    why_unschedulable: str = ""

    @property
    def total(self) -> int:
        """For how many pods the request is."""
        return sum(len(each.pods) for each in self.sets)


class ProvisioningRequestController:
    """Serves requests. ``informer`` holds them; ``trigger_provisioning`` requests a scheduling pass for a uid."""

    def __init__(
        self,
        context: ControllerContext,
        virtual_pods: VirtualPods,
        informer: Informer[ProvisioningRequest],
        trigger_provisioning: Callable[[str], None],
    ) -> None:
        self._context = context
        self._virtual_pods = virtual_pods
        self._informer = informer
        self._trigger_provisioning = trigger_provisioning
        self._tracked: dict[str, _TrackedRequest] = {}
        #: Real pods by the request that they consume.
        self._consumers: dict[str, dict[tuple[str, str], Pod]] = {}
        self._queue = Reconciler("provisioningrequest", self.reconcile, _WORKERS, PROVISIONING_REQUEST, context.metrics)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {self._queue.name: self._queue.run}

    # -- events ---------------------------------------------------------------------------------------------------------

    def on_request(self, old: ProvisioningRequest | None, new: ProvisioningRequest | None) -> None:
        """A request was added, changed or removed."""
        request = new or old
        if request is not None and is_handled(request):
            self._queue.add(_key(request))

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod that consumes a request came, changed or went: it takes the place of a virtual pod from now on."""
        before, now = _consumed_key(old), _consumed_key(new) if new is not None and pods.is_active(new) else ""
        if before == now:
            return
        if old is not None and before:
            self._consumers.get(before, {}).pop(pod_key(old), None)
        if new is not None and now:
            self._consumers.setdefault(now, {})[pod_key(new)] = new
        self._consumers = {key: consumers for key, consumers in self._consumers.items() if consumers}
        for key in filter(None, (before, now)):
            self._queue.add(key)

    def on_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> None:
        """A scheduling pass over the snapshot was executed."""
        if not self._tracked:
            return
        placements = buffer_placements(plan, nodes_with_room_now(snapshot.nodes, plan))
        reasons = _reasons(plan)
        for key, tracked in self._tracked.items():
            placement = placements.get(placement_key(tracked.request))
            tracked.placement = placement or tracked.placement
            tracked.why_unschedulable = reasons.get(placement_key(tracked.request), "")
            is_lost = placement is not None and placement.unschedulable > 0
            tracked.lost_since = (tracked.lost_since or self._context.clock.now()) if is_lost else None
            self._queue.add(key)

    # -- one request ------------------------------------------------------------------------------------------------------

    async def reconcile(self, key: str) -> float | None:
        """Update the pods and conditions of a request; returns seconds until the next pass, None to wait for events.

        Raises ``KubeError``.
        """
        namespace, _, name = key.rpartition("/")
        request = self._informer.get(name, namespace)
        if request is None or not is_handled(request) or _has_ended(request):
            self._forget(key)
            return None
        error = await self._track(key, request)
        self._publish_pods(key)  # before the write, which waits: the next scheduling pass may begin meanwhile
        seen = self._observe(key, error)
        updated = await self._write(request, seen)
        if updated is None or request_phase(updated) is RequestPhase.ENDED:
            self._forget(key)
            return None
        if request_phase(updated) is RequestPhase.PENDING:
            self._trigger_again(key)
        return REQUEST_REQUEUE_SECONDS

    async def _track(self, key: str, request: ProvisioningRequest) -> str:
        """Follow the request from now on; returns why that is not possible, empty if it is."""
        tracked = self._tracked.get(key)
        if tracked is not None and tracked.request.metadata.uid == request.metadata.uid:
            tracked.request = request
            return ""
        self._forget(key)
        if (total := sum(each.count for each in request.spec.pod_sets)) > MAX_PODS_PER_OBJECT:
            return f"a request is for at most {MAX_PODS_PER_OBJECT} pods, this one is for {total}: divide it"
        try:
            templates = [
                await self._template(each.pod_template_ref.name, request.metadata.namespace)
                for each in request.spec.pod_sets
            ]
            now = self._context.clock.now()
            sets = build_request_pods(request, templates, now)
            for each in sets:
                pods.pod_requests(each.pods[0])
        except NotFound as missing:
            return f"PodTemplate is missing: {missing}"
        except QuantityError as invalid:
            return str(invalid)
        self._tracked[key] = _TrackedRequest(request, sets, now)
        return ""

    async def _template(self, name: str, namespace: str) -> PodTemplateSpec:
        return (await self._context.kube.get(POD_TEMPLATE, name, namespace)).template

    def _observe(self, key: str, error: str) -> RequestObservation:
        now, tracked = self._context.clock.now(), self._tracked.get(key)
        if tracked is None:
            return RequestObservation(now, error=error)
        consumed = min(len(self._consumers.get(key, {})), tracked.total)
        return RequestObservation(
            now,
            tracked.total,
            consumed,
            tracked.placement,
            tracked.lost_since,
            tracked.why_unschedulable,
            error,
        )

    async def _write(self, request: ProvisioningRequest, seen: RequestObservation) -> ProvisioningRequest | None:
        """Write the conditions; returns the request with them, None if it is gone."""
        meta, own = request.metadata, request.status.conditions
        for condition in decide_conditions(request, seen):
            own = conditions.set_rootless_condition(own, condition, meta.generation, seen.now)
        status = msgspec.structs.replace(request.status, conditions=own)
        desired = msgspec.structs.replace(request, status=status)
        patch = merge_patch(request, desired)
        if not patch:
            return desired
        try:
            return await self._context.kube.patch(
                PROVISIONING_REQUEST,
                meta.name,
                patch,
                meta.namespace,
                subresource="status",
                resource_version=meta.resource_version,
            )
        except Conflict:
            return request  # changed meanwhile: its event queues it again
        except NotFound:
            return None

    # -- virtual pods -----------------------------------------------------------------------------------------------------

    def _publish_pods(self, key: str) -> None:
        """Show the pods that are awaited still to the next scheduling passes."""
        tracked = self._tracked.get(key)
        if tracked is None:
            return
        request = tracked.request
        sets = without_consumed(tracked.sets, self._consumers.get(key, {}).values())
        paused_until = self._context.state.gangs.paused_until.get(gang_name(request))
        before = self._virtual_pods.content
        for each in sets:
            self._virtual_pods.set_pods(each.key, each.pods)
        self._virtual_pods.set_gang(gang_name(request), request_gang(request, sets, paused_until))
        if self._virtual_pods.content != before:
            self._trigger(key, tracked)

    def _trigger_again(self, key: str) -> None:
        tracked = self._tracked[key]
        elapsed = self._context.clock.now() - tracked.last_trigger
        if elapsed >= timedelta(seconds=REQUEST_REQUEUE_SECONDS):
            self._trigger(key, tracked)

    def _trigger(self, key: str, tracked: _TrackedRequest) -> None:
        tracked.last_trigger = self._context.clock.now()
        self._trigger_provisioning(key)

    def _forget(self, key: str) -> None:
        tracked = self._tracked.pop(key, None)
        if tracked is not None:
            for each in tracked.sets:
                self._virtual_pods.set_pods(each.key, ())
            self._virtual_pods.set_gang(gang_name(tracked.request), None)
            self._trigger_provisioning(key)


def _key(request: ProvisioningRequest) -> str:
    return f"{request.metadata.namespace}/{request.metadata.name}"


def _consumed_key(pod: Pod | None) -> str:
    """The key of the request that a pod consumes; empty if none."""
    name = pod.metadata.annotations.get(CONSUME_ANNOTATION, "") if pod is not None else ""
    return f"{pod.metadata.namespace}/{name}" if pod is not None and name else ""


def _has_ended(request: ProvisioningRequest) -> bool:
    return request.metadata.deletion_timestamp is not None or request_phase(request) is RequestPhase.ENDED


def _reasons(plan: Solution) -> Mapping[str, str]:
    """Why virtual pods have no place, by the key of their request or buffer."""
    return {
        buffer_key_of(unplaced.pod): unschedulable_message(unplaced.reasons, short_reason_message)
        for unplaced in plan.unschedulable
        if is_virtual_pod(unplaced.pod)
    }
