"""Stand-ins for the workload controllers: Deployment, ReplicaSet, DaemonSet, disruption budgets, and the collector of pods
without a node.

Each turns a template into owned objects of the next level: a Deployment into one ReplicaSet per template (named after the
template's hash), a ReplicaSet into pods, a DaemonSet into one pod for every node that selector and taints allow. Cleaning
up after a deleted owner is the API server's business.

One queue holds what has to be looked at, one loop looks at it in the order of kind and name, and a look is idempotent: it
compares what is wanted with what there is (``ownership`` keeps that count right). A failed call is looked at again a second
later.

Compared with the real ones: a rollout moves by a quarter of the replicas (25 % surge, 25 % unavailable) whatever the strategy
says; old ReplicaSets go once they are empty, so there is no way back; orphans are not adopted; a changed DaemonSet replaces its
pods on all nodes at once; taints evict nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from karpenter.api import kinds
from karpenter.api.core import (
    DaemonSet,
    Deployment,
    Node,
    Pod,
    PodDisruptionBudget,
    PodTemplateSpec,
    ReplicaSet,
    ReplicatedSpec,
)
from karpenter.api.kinds import Kind
from karpenter.api.meta import LabelSelector, ObjectMeta, OwnerReference
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.informer import Informer, Key
from karpenter.kube.protocol import JsonObject
from karpenter.model import pods
from karpenter.model.clock import Clock
from karpenter.sim import daemons
from karpenter.sim.budgets import Budgets, CannotTell
from karpenter.sim.following import following, key_of
from karpenter.sim.ownership import (
    Offspring,
    PodMaker,
    WorkloadKube,
    controller_of,
    is_ready,
    reference_to,
    template_hash,
)

TEMPLATE_HASH = "pod-template-hash"
REVISION_HASH = "controller-revision-hash"

_RETRY_SECONDS = 1.0
#: What to look at: kind, namespace and name, and for DaemonSets the node.
_Task = tuple[str, Key, str]
_NODE, _DEPLOYMENT, _REPLICA_SET, _DAEMON_SET = "Node", "Deployment", "ReplicaSet", "DaemonSet"
_BUDGET = "PodDisruptionBudget"


class Workloads:
    """All the controllers. ``run`` it as a task."""

    def __init__(self, kube: WorkloadKube, clock: Clock) -> None:
        self._kube = kube
        self._dirty: set[_Task] = set()
        self._wake = asyncio.Event()
        self._report = _Reporter(kube)
        self._sets: Offspring[ReplicaSet] = Offspring(kube, kinds.REPLICA_SET, _owner)
        self._children: Offspring[Pod] = Offspring(kube, kinds.POD, _pod_owner)
        self._maker = PodMaker(self._children)
        self._budgets = Budgets(kube, clock, self._scale_of, lambda key: self._mark(_BUDGET, key))
        self._nodes: Informer[Node] = following(kube, kinds.NODE, self._on_node)
        self._pods: Informer[Pod] = following(kube, kinds.POD, self._on_pod)
        self._replica_sets: Informer[ReplicaSet] = following(kube, kinds.REPLICA_SET, self._on_replica_set)
        self._deployments: Informer[Deployment] = following(kube, kinds.DEPLOYMENT, self._on_deployment)
        self._daemon_sets: Informer[DaemonSet] = following(kube, kinds.DAEMON_SET, self._on_daemon_set)
        self._budget_informer: Informer[PodDisruptionBudget] = following(
            kube, kinds.POD_DISRUPTION_BUDGET, self._on_budget
        )
        self._attend: dict[str, Callable[[Key, str], Coroutine[object, object, None]]] = {
            _NODE: self._attend_node,
            _DEPLOYMENT: self._attend_deployment,
            _REPLICA_SET: self._attend_replica_set,
            _DAEMON_SET: self._attend_daemon_set,
            _BUDGET: lambda key, _: self._budgets.attend(key),
        }

    async def run(self) -> None:
        """Keep workloads as they are declared, until cancelled."""
        informers = (
            self._nodes,
            self._pods,
            self._replica_sets,
            self._deployments,
            self._daemon_sets,
            self._budget_informer,
        )
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.run())
            for informer in informers:
                await informer.wait_synced()
            while True:
                await self._wake.wait()
                self._wake.clear()
                dirty, self._dirty = sorted(self._dirty), set()
                for kind, key, node in dirty:
                    await self._look(kind, key, node)

    async def _look(self, kind: str, key: Key, node: str) -> None:
        try:
            await self._attend[kind](key, node)
        except KubeError:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._mark, kind, key, node)

    def _mark(self, kind: str, key: Key, node: str = "") -> None:
        self._dirty.add((kind, key, node))
        self._wake.set()

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        known = after or before
        assert known is not None
        if before is not None and after is not None and daemons.same_node(before, after):
            return
        name = known.metadata.name
        if after is None:
            self._mark(_NODE, Key("", name))
        for daemon_set in self._daemon_sets:
            self._mark(_DAEMON_SET, key_of(daemon_set.metadata), name)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        self._children.see(before, after)
        self._budgets.see_pod(before, after)
        known = after or before
        owner = controller_of(known.metadata) if known is not None else None
        if known is None or owner is None:
            return
        if owner.kind == _DAEMON_SET:
            self._mark(_DAEMON_SET, Key(known.metadata.namespace, owner.name), daemons.intended_node(known))
        elif owner.kind == _REPLICA_SET:
            self._mark(_REPLICA_SET, Key(known.metadata.namespace, owner.name))

    def _on_replica_set(self, before: ReplicaSet | None, after: ReplicaSet | None) -> None:
        self._sets.see(before, after)
        known = after or before
        assert known is not None
        if after is None:
            self._report.forget(known.metadata.uid)
        owner = controller_of(known.metadata)
        if owner is not None and owner.kind == _DEPLOYMENT:
            self._mark(_DEPLOYMENT, Key(known.metadata.namespace, owner.name))
        self._mark(_REPLICA_SET, key_of(known.metadata))

    def _on_deployment(self, before: Deployment | None, after: Deployment | None) -> None:
        known = after or before
        assert known is not None
        if after is None:
            self._report.forget(known.metadata.uid)
        self._mark(_DEPLOYMENT, key_of(known.metadata))

    def _on_daemon_set(self, before: DaemonSet | None, after: DaemonSet | None) -> None:
        if after is None or (before is not None and before.spec == after.spec):
            return
        for node in self._nodes:
            self._mark(_DAEMON_SET, key_of(after.metadata), node.metadata.name)

    def _on_budget(self, before: PodDisruptionBudget | None, after: PodDisruptionBudget | None) -> None:
        if after is not None:
            self._budgets.see_budget(after, self._pods)
        elif before is not None:
            self._budgets.forget(key_of(before.metadata))

    def _scale_of(self, namespace: str, owner: OwnerReference) -> int | None:
        """Replicas the controller of a pod is set to: those of the Deployment above a ReplicaSet, where there is one.

        None when there is no such controller. Raises ``CannotTell`` for a kind without replicas.
        """
        kind = kinds.KINDS.get((owner.api_version, owner.kind))
        if kind is None:
            raise CannotTell(f'no matches for kind "{owner.kind}" in version "{owner.api_version}"')
        if owner.kind not in (_REPLICA_SET, _DEPLOYMENT):
            name = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            raise CannotTell(f"{name} does not implement the scale subresource")
        informer = self._replica_sets if owner.kind == _REPLICA_SET else self._deployments
        found = informer.get(owner.name, namespace)
        if found is None or found.metadata.uid != owner.uid:
            return None
        above = controller_of(found.metadata)
        deployment = self._deployments.get(above.name, namespace) if above is not None else None
        if deployment is not None and above is not None and deployment.metadata.uid == above.uid:
            found = deployment
        return _wanted(found.spec)

    async def _attend_node(self, key: Key, _: str) -> None:
        """Remove pods bound to a node that is gone: no kubelet will ever end them."""
        if self._nodes.get(key.name) is not None:
            return
        lost = [pod for pod in self._pods if pod.spec.node_name == key.name]
        for pod in lost:
            metadata = pod.metadata
            try:
                await self._kube.delete(
                    kinds.POD, metadata.name, metadata.namespace, uid=metadata.uid, grace_period_seconds=0
                )
            except NotFound:
                continue

    async def _attend_deployment(self, key: Key, _: str) -> None:
        deployment = self._deployments.get(key.name, key.namespace)
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            return
        uid = deployment.metadata.uid
        name = f"{key.name}-{template_hash(deployment.spec.template)}"
        sets = self._sets.of(uid)
        new = next((each for each in sets if each.metadata.name == name), None)
        old = [each for each in sets if each.metadata.name != name]
        moves = rollout(_wanted(deployment.spec), _revision(new), [_revision(each) for each in old])
        if new is None and not self._sets.expected(uid):
            await self._sets.create(uid, _replica_set(deployment, name, moves[0]))
        for each, replicas in zip([*([new] if new is not None else []), *old], moves[new is None :], strict=True):
            await self._scale(each, replicas)
        await self._report.deployment(deployment, new, sets)
        for each in old:
            if not _wanted(each.spec) and not each.status.replicas:
                await self._sets.delete(uid, each)

    async def _scale(self, replica_set: ReplicaSet, replicas: int) -> None:
        if _wanted(replica_set.spec) != replicas:
            metadata = replica_set.metadata
            patch = {"spec": {"replicas": replicas}}
            await self._kube.patch(kinds.REPLICA_SET, metadata.name, patch, metadata.namespace)

    async def _attend_replica_set(self, key: Key, _: str) -> None:
        replica_set = self._replica_sets.get(key.name, key.namespace)
        if replica_set is None or replica_set.metadata.deletion_timestamp is not None:
            return
        uid = replica_set.metadata.uid
        alive = [pod for pod in self._children.of(uid) if pods.is_active(pod)]
        wanted = _wanted(replica_set.spec)
        reference = reference_to(kinds.REPLICA_SET, replica_set.metadata)
        for _number in range(wanted - len(alive) - self._children.expected(uid)):
            await self._maker.make(uid, replica_set.spec.template, reference, key.namespace)
        for pod in sorted(alive, key=_first_to_go)[: max(0, len(alive) - wanted)]:
            await self._children.delete(uid, pod)
        await self._report.replica_set(replica_set, alive)

    async def _attend_daemon_set(self, key: Key, node_name: str) -> None:
        daemon_set = self._daemon_sets.get(key.name, key.namespace)
        if daemon_set is None or daemon_set.metadata.deletion_timestamp is not None:
            return
        owner = f"{daemon_set.metadata.uid}/{node_name}"
        here = self._children.of(owner)
        node = self._nodes.get(node_name)
        revision = template_hash(daemon_set.spec.template)
        stays = node is not None and daemons.stays_on(daemon_set, node)
        fresh = [pod for pod in here if stays and pods.is_active(pod) and _revision_of(pod) == revision]
        for pod in here:
            if pod not in fresh[:1]:
                await self._children.delete(owner, pod)
        if node is None or fresh or self._children.expected(owner) or not daemons.starts_on(daemon_set, node):
            return
        template = _labelled(daemons.template_for(daemon_set, node_name), REVISION_HASH, revision)
        await self._maker.make(owner, template, reference_to(kinds.DAEMON_SET, daemon_set.metadata), key.namespace)


@dataclass(frozen=True, slots=True)
class Revision:
    """A ReplicaSet in a rollout: how many pods it is set to, and how many are ready."""

    replicas: int = 0
    ready: int = 0


def rollout(wanted: int, new: Revision, old: Sequence[Revision]) -> tuple[int, ...]:
    """The next sizes of the new and the old ReplicaSets.

    At most a quarter (rounded up) of the wanted pods exist above the wanted number, at most a quarter (rounded down) of
    them are missing.
    """
    total = new.replicas + sum(each.replicas for each in old)
    if total == new.replicas:
        return (wanted, *(0 for _ in old))
    room = max(0, wanted + math.ceil(wanted / 4) - total)
    grown = min(wanted, new.replicas + room)
    unready = max(0, new.replicas - new.ready)
    spare = max(0, total - (wanted - wanted // 4) - unready)
    shrunk = []
    for each in old:
        going = min(spare, each.replicas)
        spare -= going
        shrunk.append(each.replicas - going)
    return (grown, *shrunk)


class _Reporter:
    """Writes status, and only when it differs from what was written last."""

    def __init__(self, kube: WorkloadKube) -> None:
        self._kube = kube
        self._written: dict[str, Mapping[str, int]] = {}

    async def deployment(self, item: Deployment, new: ReplicaSet | None, sets: Sequence[ReplicaSet]) -> None:
        ready = sum(each.status.ready_replicas for each in sets)
        status = {
            **_counts(sum(each.status.replicas for each in sets), ready, item.metadata.generation),
            "updatedReplicas": new.status.replicas if new is not None else 0,
            "unavailableReplicas": max(0, _wanted(item.spec) - ready),
        }
        await self._write(kinds.DEPLOYMENT, item.metadata, status)

    async def replica_set(self, item: ReplicaSet, alive: Sequence[Pod]) -> None:
        ready = sum(is_ready(pod) for pod in alive)
        await self._write(kinds.REPLICA_SET, item.metadata, _counts(len(alive), ready, item.metadata.generation))

    async def _write(
        self, kind: Kind[Deployment] | Kind[ReplicaSet], metadata: ObjectMeta, status: Mapping[str, int]
    ) -> None:
        if self._written.get(metadata.uid) == status:
            return
        patch: JsonObject = {"status": status}
        if kind is kinds.DEPLOYMENT:
            await self._kube.patch(kinds.DEPLOYMENT, metadata.name, patch, metadata.namespace, subresource="status")
        else:
            await self._kube.patch(kinds.REPLICA_SET, metadata.name, patch, metadata.namespace, subresource="status")
        self._written[metadata.uid] = status

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._written.pop(uid, None)


def _counts(replicas: int, ready: int, observed: int) -> dict[str, int]:
    return {
        "replicas": replicas,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "observedGeneration": observed,
    }


def _wanted(spec: ReplicatedSpec) -> int:
    return 1 if spec.replicas is None else spec.replicas


def _revision(replica_set: ReplicaSet | None) -> Revision:
    if replica_set is None:
        return Revision()
    return Revision(_wanted(replica_set.spec), replica_set.status.ready_replicas)


def _owner(item: ReplicaSet) -> str | None:
    owner = controller_of(item.metadata)
    return owner.uid if owner is not None else None


def _pod_owner(pod: Pod) -> str | None:
    """The owner's uid; for a DaemonSet's pod together with the node it was made for."""
    owner = controller_of(pod.metadata)
    if owner is None:
        return None
    return f"{owner.uid}/{daemons.intended_node(pod)}" if owner.kind == _DAEMON_SET else owner.uid


def _revision_of(pod: Pod) -> str:
    return pod.metadata.labels.get(REVISION_HASH, "")


def _labelled(template: PodTemplateSpec, key: str, value: str) -> PodTemplateSpec:
    metadata = template.metadata
    labels = {**metadata.labels, key: value}
    return msgspec.structs.replace(template, metadata=msgspec.structs.replace(metadata, labels=labels))


def _replica_set(deployment: Deployment, name: str, replicas: int) -> ReplicaSet:
    revision = name.rpartition("-")[2]
    template = _labelled(deployment.spec.template, TEMPLATE_HASH, revision)
    selector = deployment.spec.selector or LabelSelector()
    own = msgspec.structs.replace(selector, match_labels={**selector.match_labels, TEMPLATE_HASH: revision})
    return ReplicaSet(
        metadata=ObjectMeta(
            name=name,
            namespace=deployment.metadata.namespace,
            labels=template.metadata.labels,
            owner_references=(reference_to(kinds.DEPLOYMENT, deployment.metadata),),
        ),
        spec=ReplicatedSpec(replicas=replicas, selector=own, template=template),
    )


def _first_to_go(pod: Pod) -> tuple[bool, bool, float, str]:
    """Pods without a node first, then those not ready, then the newest."""
    created = pod.metadata.creation_timestamp
    age = -created.timestamp() if created is not None else 0.0
    return (bool(pod.spec.node_name), is_ready(pod), age, pod.metadata.name)
