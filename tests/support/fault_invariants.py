"""Invariants that hold at every moment, whatever faults the controller meets."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any

from karpenter.api import kinds
from karpenter.api.core import ConfigMap, Node, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.informer import Informer, WatchScope
from karpenter.model import conditions, labels, pods
from karpenter.model import resources as res
from karpenter.model.clock import Clock
from karpenter.providers.simulated.simulated_instances import (
    INSTANCE_NAMESPACE,
    INSTANCE_SELECTOR,
    SimulatedInstance,
    decode_instance,
)
from karpenter.simulation.apiserver import MemoryKube
from karpenter.simulation.run_report import CostMeter
from karpenter.simulation.simulated_cluster import is_pod_ready
from support.fake_cloud import Write

#: Garbage is collected every two minutes, a claim has fifteen to register; a quarter of an hour for a crash and lost watches.
ORPHAN_AGE = timedelta(minutes=20)
UNREGISTERED_AGE = timedelta(minutes=40)
_BUDGET_SHARE = 0.2
_BUDGET_MEMORY = timedelta(minutes=60)
_VOLUNTARY = frozenset({"Underutilized", "Empty", "Drifted"})


class ClusterWatch:
    """The cluster as it is, seen over a connection that never fails."""

    def __init__(self, kube: MemoryKube) -> None:
        self.pods: Informer[Pod] = Informer(kube, kinds.POD, indexes={"node": _node_of})
        self.claims: Informer[NodeClaim] = Informer(kube, kinds.NODE_CLAIM)
        self.nodes: Informer[Node] = Informer(kube, kinds.NODE)
        self.instances: Informer[ConfigMap] = Informer(
            kube, kinds.CONFIG_MAP, WatchScope(INSTANCE_NAMESPACE, INSTANCE_SELECTOR)
        )
        self.meter = CostMeter()
        self.launches = 0
        self.notices = 0

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        return [self.pods.run(), self.claims.run(), self.nodes.run(), self.instances.run()]

    async def wait_synced(self) -> None:
        for informer in (self.pods, self.claims, self.nodes, self.instances):
            await informer.wait_synced()

    def running(self) -> list[SimulatedInstance]:
        records = (decode_instance(stored) for stored in self.instances)
        return [record for record in records if record is not None and not record.terminating]


class FaultInvariants:
    """Collects in ``broken`` what did not hold, and when."""

    def __init__(self, watch: ClusterWatch, clock: Clock, cpu_limit: float, types: Mapping[str, InstanceType]) -> None:
        self._watch = watch
        self._clock = clock
        self._cpu_limit = cpu_limit
        self._cpu = {name: type_.capacity[res.CPU] for name, type_ in types.items()}
        self.broken: list[str] = []
        #: Nodes whose instances the cloud took.
        self.taken: set[str] = set()
        self.essential_writes: list[str] = []
        self._since: dict[str, datetime] = {}
        self._node_counts: deque[tuple[datetime, int]] = deque()
        self._reported: set[str] = set()
        watch.instances.subscribe(self._on_instance)
        watch.claims.subscribe(self._on_claim)

    def _break(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self.broken.append(f"{self._clock.now():%a %H:%M:%S} {text}")

    # -- at every change ------------------------------------------------------------------------------------------------

    def _on_instance(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        before = decode_instance(old) if old is not None else None
        record = decode_instance(new) if new is not None else None
        now = self._clock.now()
        was_running = before is not None and not before.terminating
        if record is not None and not record.terminating:
            if not was_running:
                self._watch.launches += 1
                self._watch.notices += 1
                self._watch.meter.set_price(record.node_name, now, record.price_per_hour)
                self._check_launches()
        elif was_running and before is not None:
            self._watch.notices += 1
            self._watch.meter.stop(before.node_name, now)

    def _check_launches(self) -> None:
        running = self._watch.running()
        for uid, count in Counter(record.claim_uid for record in running).items():
            if count > 1:
                self._break(f"NodeClaim {uid} has {count} instances")
        cpu = sum(self._cpu[record.instance_type] for record in running) / self._cpu_unit()
        if cpu > self._cpu_limit:
            self._break(f"{cpu:g} CPUs run under a limit of {self._cpu_limit:g}")

    def _cpu_unit(self) -> float:
        return float(res.parse_resources({"cpu": "1"})[res.CPU])

    def _on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Not more nodes go at once than the budget says."""
        now = self._clock.now()
        count = len(self._watch.nodes)
        self._node_counts.append((now, count))
        while self._node_counts[0][0] < now - _BUDGET_MEMORY:
            self._node_counts.popleft()
        if new is None or new.metadata.deletion_timestamp is None:
            return
        going = [claim for claim in self._watch.claims if claim.metadata.deletion_timestamp and _counts_as_going(claim)]
        allowed = math.ceil(_BUDGET_SHARE * max(nodes for _, nodes in self._node_counts))
        if len(going) > allowed:
            names = ", ".join(sorted(claim.metadata.name for claim in going))
            self._break(f"{len(going)} nodes go at once, {allowed} may: {names}")

    # -- at every write of the controller -------------------------------------------------------------------------------

    def on_write(self, write: Write) -> None:
        """A write of some process, right before it is done."""
        if write.kind not in ("Event", "Lease") and (write.kind, write.subresource) != ("NodePool", "status"):
            self.essential_writes.append(f"{self._clock.now():%a %H:%M:%S} {write} {write.name} {write.body}"[:300])
        if write.kind == "ConfigMap" and write.verb == "patch":
            self._check_ending(write.name)
        elif write.kind == "Pod" and write.verb == "evict":
            self._check_eviction(write.name)
        elif write.kind == "Pod" and write.verb == "delete":
            self._check_pod_deletion(write.name)

    def _check_ending(self, name: str) -> None:
        """No instance is ended under pods that run on it."""
        if name in self.taken:
            return
        running = [pod.metadata.name for pod in self._watch.pods.by_index("node", name) if _is_at_work(pod)]
        if running:
            self._break(f"instance {name} is ended under {', '.join(running)}")

    def _check_eviction(self, name: str) -> None:
        pod = self._watch.pods.get(name, "default")
        if pod is None or not pod.spec.node_name:
            return
        claim = self._claim_of(pod.spec.node_name)
        if pod.spec.node_name in self.taken:
            return
        if claim is not None and claim.metadata.deletion_timestamp is None:
            self._break(f"pod {name} is evicted from node {pod.spec.node_name}, which stays")
        if labels.DO_NOT_DISRUPT in pod.metadata.annotations and claim is not None and _is_voluntary(claim):
            self._break(f"pod {name} must not be disrupted and is evicted")

    def _check_pod_deletion(self, name: str) -> None:
        pod = self._watch.pods.get(name, "default")
        if pod is not None and _is_at_work(pod) and pod.spec.node_name not in self.taken:
            self._break(f"pod {name} is deleted by the controller")

    def _claim_of(self, node: str) -> NodeClaim | None:
        return next((claim for claim in self._watch.claims if claim.status.node_name == node), None)

    # -- every minute -----------------------------------------------------------------------------------------------------

    def check(self, *, is_skewed: bool) -> None:
        """Nothing is without its counterpart for long. While the controller's clock is wrong no age counts."""
        if is_skewed:
            self._since.clear()
            return
        now = self._clock.now()
        found = self._unpaired()
        self._since = {what: self._since.get(what, now) for what in found}
        for what, since in self._since.items():
            if now - since > found[what]:
                self._break(what)

    def _unpaired(self) -> dict[str, timedelta]:
        running = self._watch.running()
        claims = {claim.metadata.uid: claim for claim in self._watch.claims}
        ids = {record.provider_id for record in running}
        names = {record.node_name for record in running}
        found = {f"instance {r.node_name} has no NodeClaim": ORPHAN_AGE for r in running if r.claim_uid not in claims}
        for claim in claims.values():
            name = claim.metadata.name
            if claim.status.provider_id and claim.status.provider_id not in ids:
                found[f"NodeClaim {name} has no instance"] = ORPHAN_AGE
            elif not conditions.is_true(claim.status.conditions, "Registered"):
                found[f"NodeClaim {name} does not register and stays"] = UNREGISTERED_AGE
        for node in self._watch.nodes:
            if node.metadata.name not in names:
                found[f"node {node.metadata.name} has no instance"] = ORPHAN_AGE
            elif labels.DISRUPTED_TAINT in node.spec.taints:
                claim = self._claim_of(node.metadata.name)
                if claim is not None and claim.metadata.deletion_timestamp is None:
                    found[f"node {node.metadata.name} stays tainted"] = UNREGISTERED_AGE
        return found

    # -- in the end -------------------------------------------------------------------------------------------------------

    def check_quiet(self, before: tuple[int, int]) -> None:
        """All pods run, everything has its counterpart, and nothing happened for a while."""
        waiting = sorted(pod.metadata.name for pod in self._watch.pods if pods.is_active(pod) and not is_pod_ready(pod))
        if waiting:
            self._break(f"pods are not ready in the end: {', '.join(waiting)}")
        going = sorted(claim.metadata.name for claim in self._watch.claims if claim.metadata.deletion_timestamp)
        if going:
            self._break(f"NodeClaims are still going: {', '.join(going)}")
        for what in self._unpaired():
            self._break(f"in the end {what}")
        notices, writes = before
        if self._watch.notices > notices:
            self._break(f"{self._watch.notices - notices} instances came or went in the last, quiet hour")
        if len(self.essential_writes) > writes:
            late = self.essential_writes[writes:]
            self._break(f"{len(late)} writes in the last, quiet hour, such as {late[0]}")


def _node_of(pod: Pod) -> tuple[str, ...]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _is_at_work(pod: Pod) -> bool:
    return pods.is_active(pod) and pod.metadata.deletion_timestamp is None and is_pod_ready(pod)


def _counts_as_going(claim: NodeClaim) -> bool:
    """One whose instance is being terminated has no pods any more."""
    return _is_voluntary(claim) and not conditions.is_true(claim.status.conditions, "InstanceTerminating")


def _is_voluntary(claim: NodeClaim) -> bool:
    condition = conditions.find_condition(claim.status.conditions, "DisruptionReason")
    return condition is not None and condition.reason in _VOLUNTARY
