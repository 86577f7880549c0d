"""The end of a Node: cordon, drain, wait for volumes, let the instance go, then let the Node go (DIS §17.2).

One look at a deleting Node goes through the steps until one of them has to wait; what holds it is named (``culprits``), in the
claim's conditions at once, as events and in the log when it lasts (``stuck``). A look never waits for evictions: it says which
pods are wanted away, and the ``Evictor`` asks for them at its own pace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.act import culprits, protection, volumes
from karpenter.act.draft import Draft
from karpenter.act.events import NORMAL, WARNING, Happening, about_node, shortened
from karpenter.act.evict import Evictor, first_tier
from karpenter.act.force import Forcer, is_forced
from karpenter.act.instances import Instances
from karpenter.act.patching import difference
from karpenter.act.stuck import Messages, Reporter
from karpenter.act.world import World
from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM, POD
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions, labels, pods, taints
from karpenter.model.clock import rfc3339
from karpenter.providers.contract import ProviderError

#: How often a draining node is looked at (DIS-038), and the shortest drain: pods may still be arriving (DIS-524).
DRAIN_POLL_SECONDS = 1.0
SHORTEST_DRAIN = timedelta(seconds=5)
_DRAINED, _DETACHED = "Drained", "VolumesDetached"
_ELAPSED = "TerminationGracePeriodElapsed"
_log = structlog.get_logger()


def cordoned(node: Node) -> Node:
    """The Node closed to pods and load balancers (DIS-514)."""
    others = tuple(taint for taint in node.spec.taints if taint.key != labels.DISRUPTED_TAINT.key)
    marked = {**node.metadata.labels, labels.EXCLUDE_FROM_LOAD_BALANCERS: "karpenter"}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels=marked),
        spec=msgspec.structs.replace(node.spec, taints=(*others, labels.DISRUPTED_TAINT)),
    )


def tainted(node: Node) -> Node:
    """The Node with the disruption taint, unless it has one already."""
    if any(taints.same(taint, labels.DISRUPTED_TAINT) for taint in node.spec.taints):
        return node
    return msgspec.structs.replace(
        node, spec=msgspec.structs.replace(node.spec, taints=(*node.spec.taints, labels.DISRUPTED_TAINT))
    )


async def pods_on_node(world: World, node_name: str) -> tuple[Pod, ...]:
    """Pods bound to a node as the API server says it, not as a watch that may be behind.

    Raises ``KubeError``, also when one of them cannot be read: what cannot be read may not be taken for absent.
    """
    listing = await world.kube.list(POD, field_selector=f"spec.nodeName={node_name}")
    if listing.rejected:
        raise KubeError(f"a pod on node {node_name} cannot be read: {listing.rejected[0].error}")
    return listing.items


@dataclass(frozen=True)
class _Held:
    """A step that has to wait: until when, for what, and after which fault."""

    seconds: float
    culprits: Sequence[str]
    fault: ProviderError | None = None


@dataclass
class _Ending:
    """One look at a Node's ending. Without a claim there are no conditions, no deadline, no instance to end (DIS-511)."""

    node: Node
    claim: NodeClaim | None
    now: datetime
    deadline: datetime | None = None
    #: A deadline that cannot be read, as it is written.
    broken_deadline: str = ""
    draft: Draft | None = field(init=False)

    def __post_init__(self) -> None:
        self.draft = Draft(self.claim, self.now) if self.claim is not None else None
        text = self.claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "") if self.claim is not None else ""
        self.deadline = _moment(text)
        self.broken_deadline = text if self.deadline is None else ""

    @property
    def name(self) -> str:
        return self.node.metadata.name

    def is_past_deadline(self) -> bool:
        return self.deadline is not None and self.now > self.deadline

    def is_true(self, kind: str) -> bool:
        return self.draft is not None and self.draft.is_true(kind)

    def set(self, kind: str, status: str, reason: str = "", message: str = "") -> None:
        if self.draft is not None:
            self.draft.set(kind, status, reason, message)


class Drainer:
    """Takes deleting Nodes apart."""

    def __init__(self, world: World, evictor: Evictor) -> None:
        self._world = world
        self._evictor = evictor
        self._forcer = Forcer(world)
        self._instances = Instances(world)
        self._reporter = Reporter(world)
        self._messages = Messages()
        self._vanished: dict[str, Node] = {}

    def vanished(self, node: Node) -> None:
        """The watch says that the Node is gone; the next look at its name follows that up."""
        self._vanished[node.metadata.name] = node

    async def look(self, name: str) -> float | None:
        """One step of a Node's ending; seconds until the next look, None to wait for events.

        Raises ``KubeError`` or ``ProviderError`` when a step failed and should be retried with back-off.
        """
        if name in self._vanished:
            await self._follow(self._vanished[name])
            self._vanished.pop(name, None)
        node = self._world.state.node(name)
        if node is None or node.metadata.deletion_timestamp is None:
            self._evictor.withdraw(name)
            return None
        claim = self._claim_of(node.spec.provider_id)
        if not self._is_ours(node, claim):
            return None
        context = {"NodeClaim": {"name": claim.metadata.name}} if claim else {}
        with structlog.contextvars.bound_contextvars(Node={"name": name}, **context):
            if labels.TERMINATION_FINALIZER not in node.metadata.finalizers:
                return self._outlived(node, claim)
            try:
                return await self._look(_Ending(node, claim, self._world.clock.now()))
            except (NotFound, Conflict):
                return DRAIN_POLL_SECONDS

    def _claim_of(self, provider_id: str) -> NodeClaim | None:
        """The Node's claim; with several of one provider ID nobody can say which, so there is none (DIS-511)."""
        found = self._world.state.claims_of(provider_id)
        return found[0] if len(found) == 1 else None

    def _is_ours(self, node: Node, claim: NodeClaim | None) -> bool:
        """Only nodes of a class the provider serves (DIS-510), as their label or their claim says."""
        if claim is not None and self._world.manages(claim):
            return True
        served = {f"{kind.group}/{kind.name.lower()}" for kind in self._world.provider.node_class_kinds}
        return not served.isdisjoint(node.metadata.labels)

    async def _follow(self, gone: Node) -> None:
        """A Node went: so does its claim, also when somebody took the finalizer off and so the drain away (DIS-S294)."""
        self._reporter.forget(gone.metadata.uid)
        for kind in (_DRAINED, _DETACHED):
            self._messages.forget(f"{gone.metadata.uid}/{kind}")
        claim = self._claim_of(gone.spec.provider_id)
        if claim is None or not self._world.manages(claim) or claim.metadata.deletion_timestamp is not None:
            return
        registered = conditions.is_true(claim.status.conditions, "Registered")
        if registered and not self._world.state.nodes_of(gone.spec.provider_id):
            _log.info("deleting nodeclaim whose node is gone", NodeClaim={"name": claim.metadata.name})
            await self._delete_claim(claim)

    async def _delete_claim(self, claim: NodeClaim) -> None:
        try:
            await self._world.kube.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        except (NotFound, Conflict):
            return

    def _outlived(self, node: Node, claim: NodeClaim | None) -> float | None:
        """Our part is done, or was taken from us; what still keeps the Node is somebody else's."""
        self._evictor.withdraw(node.metadata.name)
        if not node.metadata.finalizers:
            return None
        return self._reporter.tell(node, claim, [culprits.of_finalizers("Node", node.metadata)])

    async def _look(self, ending: _Ending) -> float | None:
        claim, node = ending.claim, ending.node
        is_new = claim is not None and claim.metadata.deletion_timestamp is None
        if claim is not None and is_new:
            await self._delete_claim(claim)
        if await self._is_dead(node):
            await self._release(node)
            return None
        await self._cordon(node)
        if is_new:
            # The claim has changed: what is known of it now could not be written any more.
            return DRAIN_POLL_SECONDS
        held = await self._drain(ending) or self._detach(ending) or await self._end_instance(ending)
        await self._write(ending)
        if held is None:
            await self._release(node)
            return None
        self._reporter.tell(node, claim, held.culprits)
        if held.fault is not None:
            raise held.fault
        return held.seconds

    async def _is_dead(self, node: Node) -> bool:
        """Whether nothing runs there any more: the kubelet is silent and the cloud knows no machine (DIS-512)."""
        if conditions.is_true(node.status.conditions, "Ready"):
            return False
        return await self._instances.is_missing(node.spec.provider_id)

    async def _cordon(self, node: Node) -> None:
        patch = difference(node, cordoned(node))
        if patch:
            await self._world.kube.patch(
                NODE, node.metadata.name, patch, resource_version=node.metadata.resource_version
            )
            taint = labels.DISRUPTED_TAINT
            _log.info(
                "tainted node",
                **{"taint.Key": taint.key, "taint.Value": taint.value, "taint.Effect": taint.effect},
            )

    async def _write(self, ending: _Ending) -> None:
        """Write the claim's conditions; a drain that ended is counted when that is stored (DIS-408)."""
        if ending.draft is None or ending.claim is None:
            return
        was_drained = conditions.is_true(ending.claim.status.conditions, _DRAINED)
        await ending.draft.write(self._world)
        if ending.is_true(_DRAINED) and not was_drained:
            pool = ending.node.metadata.labels.get(labels.NODE_POOL, "")
            self._world.metrics.nodes_drained_total.labels(nodepool=pool).inc()

    def _wait(self, ending: _Ending, kind: str, reason: str, found: Sequence[str]) -> None:
        """Keep a condition Unknown, with what holds its step as the message where there is something to name."""
        if ending.draft is None:
            return
        known, key = ending.draft.condition(kind), f"{ending.node.metadata.uid}/{kind}"
        wished = culprits.joined(found) or reason
        stored = known.message if known is not None and known.status == conditions.UNKNOWN else ""
        ending.set(kind, conditions.UNKNOWN, reason, self._messages.settle(key, stored, wished, ending.now))

    # -- draining -------------------------------------------------------------------------------------------------------

    async def _drain(self, ending: _Ending) -> _Held | None:
        """Ask the next pods to go, and wait while any is left (DIS-520 to DIS-525)."""
        self._say_deadline(ending)
        waiting = await self._waiting(ending)
        forced, rest = _parted(waiting, ending)
        self._evictor.want(ending.node, self._evictable(first_tier(rest), ending.now))
        if forced and ending.deadline is not None:
            await self._forcer.delete(forced, ending.node, ending.deadline)
        if not waiting:
            return self._finish(ending)
        text = f"{len(waiting)} pods are waiting to be evicted"
        found = self._hindrances(ending, waiting)
        self._say_failed(ending.node, f"Failed to drain node, {culprits.joined((text, *found))}")
        if not ending.is_true(_DRAINED):
            self._wait(ending, _DRAINED, "Draining", found)
        return _Held(DRAIN_POLL_SECONDS, found or (text,))

    async def _waiting(self, ending: _Ending) -> list[Pod]:
        """The pods that must go. That there is none is believed to the API server only."""
        now = self._world.clock.now()
        bound: Iterable[Pod] = self._world.state.pods_on(ending.name)
        waiting = [pod for pod in bound if pods.needs_draining(pod, now)]
        if waiting or ending.is_true(_DRAINED) or not _is_long_enough(ending):
            return waiting
        return [pod for pod in await pods_on_node(self._world, ending.name) if pods.needs_draining(pod, now)]

    def _evictable(self, tier: Iterable[Pod], now: datetime) -> list[Pod]:
        """Those of a tier that may be asked to go now, the least costly first."""
        for pod in tier:
            protection.tell(self._world, pod)
        found = [pod for pod in tier if pods.is_active(pod) and not pods.is_protected(pod, now)]
        return sorted(found, key=lambda pod: (pods.eviction_cost(pod), pod.metadata.namespace, pod.metadata.name))

    def _finish(self, ending: _Ending) -> _Held | None:
        """No pod is left; whether the drain may end now, or pods may still be on their way (DIS-524)."""
        if ending.draft is None or ending.is_true(_DRAINED):
            return None
        if _is_long_enough(ending):
            ending.set(_DRAINED, conditions.TRUE)
            return None
        self._wait(ending, _DRAINED, "Draining", ())
        return _Held(DRAIN_POLL_SECONDS, ("pods may still be arriving",))

    def _hindrances(self, ending: _Ending, waiting: Sequence[Pod]) -> tuple[str, ...]:
        """What keeps pods on the node, and what else is wrong while it lasts."""
        refusals = self._evictor.refusals(ending.name)
        budgets = self._world.state.budgets() if refusals else ()
        picture = culprits.DrainPicture(waiting, budgets, refusals, ending.now)
        found = culprits.of_pods(picture)
        if ending.broken_deadline:
            found = (culprits.of_deadline(ending.broken_deadline), *found)
        provider_id = ending.node.spec.provider_id
        fault = self._instances.fault(provider_id)
        return found if fault is None else (*found, culprits.of_instance(provider_id, fault))

    def _say_deadline(self, ending: _Ending) -> None:
        """DIS-513"""
        if ending.broken_deadline:
            self._say_failed(
                ending.node, f"Failed to drain node, {culprits.of_deadline(ending.broken_deadline)}", "deadline"
            )
        if ending.deadline is not None:
            text = f"All pods will be deleted by {rfc3339(ending.deadline)}"
            about = about_node(ending.node.metadata)
            self._world.events.publish(Happening(about, WARNING, "TerminationGracePeriodExpiring", text))

    def _say_failed(self, node: Node, text: str, *values: str) -> None:
        self._world.events.publish(Happening(about_node(node.metadata), WARNING, "FailedDraining", text, values))

    # -- volumes --------------------------------------------------------------------------------------------------------

    def _detach(self, ending: _Ending) -> _Held | None:
        """Wait until volumes are detached, or the time is up (DIS-540 to DIS-542)."""
        attached = volumes.awaited(self._world.state, ending.name, ending.now)
        if not attached:
            ending.set(_DETACHED, conditions.TRUE)
            return None
        if ending.is_past_deadline():
            ending.set(_DETACHED, conditions.FALSE, _ELAPSED, _ELAPSED)
            return None
        names = [item.metadata.name for item in attached]
        text = f"Awaiting volume detachment, {shortened(names)}"
        self._world.events.publish(
            Happening(about_node(ending.node.metadata), NORMAL, "AwaitingVolumeDetachment", text)
        )
        found = [culprits.of_volume(item, volumes.claim_of(self._world.state, item)) for item in attached]
        self._wait(ending, _DETACHED, "AwaitingVolumeDetachment", found)
        return _Held(DRAIN_POLL_SECONDS, found)

    # -- the machine ----------------------------------------------------------------------------------------------------

    async def _end_instance(self, ending: _Ending) -> _Held | None:
        """Have the instance ended, and wait until it is gone (DIS-545)."""
        if ending.draft is None:
            return None
        provider_id = ending.node.spec.provider_id
        try:
            left = await self._instances.end(ending.draft, provider_id)
        except ProviderError as fault:
            return _Held(0.0, (culprits.of_instance(provider_id, fault),), fault)
        return _Held(left, (culprits.of_instance(provider_id, None),)) if left > 0 else None

    async def _release(self, node: Node) -> None:
        """Let the Node go, and count it (OPS-418, OPS-419)."""
        meta = node.metadata
        self._evictor.withdraw(meta.name)
        left = [name for name in meta.finalizers if name != labels.TERMINATION_FINALIZER]
        patch: JsonObject = {"metadata": {"finalizers": left}}
        await self._world.kube.patch(NODE, meta.name, patch, resource_version=meta.resource_version)
        _log.info("deleted node")
        self._instances.forget(node.spec.provider_id)
        now, pool = self._world.clock.now(), meta.labels.get(labels.NODE_POOL, "")
        metrics = self._world.metrics
        metrics.nodes_terminated_total.labels(nodepool=pool, zone=meta.labels.get(labels.ZONE, "")).inc()
        metrics.nodes_termination_duration_seconds.labels(nodepool=pool).observe(
            (now - (meta.deletion_timestamp or now)).total_seconds()
        )


def _parted(waiting: Iterable[Pod], ending: _Ending) -> tuple[list[Pod], list[Pod]]:
    """The pods that must be deleted for the deadline's sake, and the others."""
    forced: list[Pod] = []
    rest: list[Pod] = []
    for pod in waiting:
        (forced if is_forced(pod, ending.deadline, ending.now) else rest).append(pod)
    return forced, rest


def _is_long_enough(ending: _Ending) -> bool:
    """Whether the drain may end now (DIS-524), so that it is worth asking the API server itself who is still there."""
    if ending.draft is None:
        return True
    drained = ending.draft.condition(_DRAINED)
    since = drained.last_transition_time if drained is not None else None
    return since is not None and ending.now - since >= SHORTEST_DRAIN


def _moment(text: str) -> datetime | None:
    """The time an annotation spells; None for anything that is not RFC 3339."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
