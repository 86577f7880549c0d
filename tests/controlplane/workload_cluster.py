"""A working control plane with one NodePool and pods that need an instance each, for tests of faults, restarts and consolidation.

Tests compare what the API server and its audit log show: pods, claims, Nodes and instances, and how many claims and instances
were deleted on the way. Instances are removed only where a test allows it (``WorkloadCluster.pool``), so that a surplus one stays
visible.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import pytest

from controlplane import cleanup, deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import one_of, simulated_class, simulated_pool
from controlplane.process import Controller
from controlplane.timeouts import scaled_timeout
from karpenter.api import kinds
from karpenter.api.core import ConfigMap, Event, Node, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.model import conditions
from karpenter.providers.simulated import simulated_instances
from karpenter.providers.simulated.simulated_instances import SimulatedInstance

T = TypeVar("T", bound=Wire)

#: The one type the pool usually has, and requests of which one pod fits on it.
TYPE = "m5.large"
CPU = "1500m"
#: Without an election a process acts at once, instead of when the lease of a dead one has run out.
ALONE = ("--disable-leader-election", "true")
NOMINATION = "--nominate-pods"
NAMESPACE = "default"
_MERGE = "application/merge-patch+json"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Observation:
    """Pods, claims, Nodes and instances at one moment."""

    pods: tuple[Pod, ...]
    claims: tuple[NodeClaim, ...]
    nodes: tuple[Node, ...]
    instances: tuple[SimulatedInstance, ...]

    @property
    def running(self) -> int:
        """How many pods run on an existing Node."""
        names = {node.metadata.name for node in self.nodes}
        return sum(pod.status.phase == "Running" and pod.spec.node_name in names for pod in self.pods)

    def inconsistency(self) -> str:
        """What is inconsistent; empty where each claim has one instance and one ready Node, and nothing else exists."""
        owners = Counter(instance.claim_uid for instance in self.instances)
        uids = {claim.metadata.uid for claim in self.claims}
        node_ids = Counter(node.spec.provider_id for node in self.nodes)
        instance_ids = {instance.provider_id for instance in self.instances}
        unready = [node for node in self.nodes if not conditions.is_true(node.status.conditions, "Ready")]
        faults = {
            "claims with more than one instance": [uid for uid, count in owners.items() if count > 1],
            "instances without claim": sorted(set(owners) - uids),
            "claims without instance": sorted(uids - set(owners)),
            "claims without Node": [claim for claim in self.claims if not _has_node(claim, node_ids)],
            "instances with more than one Node": [key for key, count in node_ids.items() if count > 1],
            "Nodes without instance": sorted(set(node_ids) - instance_ids),
            "Nodes not ready": unready,
            "instances that are ending": [instance for instance in self.instances if instance.terminating],
        }
        return ", ".join(f"{len(fault)} {what}" for what, fault in faults.items() if fault)


def _has_node(claim: NodeClaim, node_ids: Mapping[str, int]) -> bool:
    return claim.status.provider_id in node_ids and conditions.is_true(claim.status.conditions, "Initialized")


@dataclass
class WorkloadCluster:
    """The cluster of one test."""

    plane: ControlPlane
    account: Account
    _before: int = field(init=False)

    def __post_init__(self) -> None:
        self._before = len(self.account.calls())

    # -- what is there ------------------------------------------------------------------------------------------------

    def all(self, kind: Kind[T], namespace: str = "", query: str = "") -> tuple[T, ...]:
        """All objects of a kind."""
        objects: list[Json] = self.plane.request("GET", kind.path(namespace) + query)["items"]
        return tuple(kind.decode(json.dumps(obj).encode()) for obj in objects)

    def observe(self) -> Observation:
        """The present state."""
        books: tuple[ConfigMap, ...] = self.all(
            kinds.CONFIG_MAP,
            simulated_instances.INSTANCE_NAMESPACE,
            f"?labelSelector={simulated_instances.INSTANCE_SELECTOR}",
        )
        return Observation(
            self.all(kinds.POD, NAMESPACE),
            self.all(kinds.NODE_CLAIM),
            self.all(kinds.NODE),
            tuple(record for stored in books if (record := simulated_instances.decode_instance(stored)) is not None),
        )

    def given_up(self, kind: Kind[T]) -> int:
        """How many deletions of objects of a kind the controller has asked for in this test.

        What was made is what is there and what was deleted. Creations are not counted: where the caller died before the
        answer, the audit log calls them failed.
        """
        calls = self.account.calls()[self._before :]
        return sum(call.verb == "delete" and call.resource == kind.plural for call in calls)

    def writes(self) -> int:
        """How many writes the controller and its instances have made in this test, heartbeats and elections aside."""
        verbs = ("create", "update", "patch", "delete")
        calls = self.account.calls()[self._before :]
        return sum(call.verb in verbs and call.resource != kinds.LEASE.plural for call in calls)

    def events(self, reason: str, name: str) -> list[Event]:
        """The events of a reason about an object."""
        return list(self.all(kinds.EVENT, NAMESPACE, f"?fieldSelector=reason={reason},involvedObject.name={name}"))

    def until(self, condition: Callable[[], str], seconds: float = 90.0) -> None:
        """Wait until the condition returns an empty text; ``TimeoutError`` with its last text at the deadline."""
        end = time.monotonic() + scaled_timeout(seconds)
        while missing := condition():
            if time.monotonic() > end:
                raise TimeoutError(f"after {seconds:g} seconds: {missing}")
            time.sleep(_POLL_SECONDS)

    def until_running(self, pods: int, seconds: float = 90.0) -> Observation:
        """Wait until exactly so many pods exist and run, and instances, claims and Nodes are consistent; returns that state."""
        seen: list[Observation] = []

        def lacking() -> str:
            observation = self.observe()
            seen.append(observation)
            if len(observation.pods) != pods or observation.running != pods:
                return f"{observation.running} of {len(observation.pods)} pods run; {observation.inconsistency()}"
            return observation.inconsistency()

        self.until(lacking, seconds)
        return seen[-1]

    def until_gone(self, *uids: str, seconds: float = 90.0) -> None:
        """Wait until no claim with one of these uids is left."""

        def left() -> str:
            names = [claim.metadata.name for claim in self.observe().claims if claim.metadata.uid in uids]
            return f"{', '.join(names)} still there" if names else ""

        self.until(left, seconds)

    # -- what is done -------------------------------------------------------------------------------------------------

    def node_class(self, name: str = "default", delay: str = "1s") -> None:
        """A node class whose instances join after a delay."""
        self.plane.apply(simulated_class(name, nodeRegistrationDelay=delay))

    def pool(
        self, name: str = "default", *, types: Iterable[str] = (TYPE,), after: str = "Never", **fields: Json
    ) -> None:
        """A pool of these types; ``after`` is its consolidateAfter, ``fields`` come on top of its template's spec."""
        wanted = [
            one_of("karpenter.sh/capacity-type", "spot", "on-demand"),
            one_of("node.kubernetes.io/instance-type", *types),
        ]
        disruption = {"consolidateAfter": after, "budgets": [{"nodes": "100%"}]}
        pool = simulated_pool(name, wanted, disruption=disruption)
        pool["spec"]["template"]["spec"] |= fields
        self.plane.apply(pool)

    def deploy(self, replicas: int, name: str = "web", **fields: object) -> None:
        """A Deployment of pods that need an instance each; ``fields`` come on top of the pods' spec."""
        labels = {"app": name}
        container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": CPU, "memory": "1Gi"}}}
        pod = {"containers": [container], "terminationGracePeriodSeconds": 1, **fields}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        head = {"apiVersion": "apps/v1", "kind": "Deployment"}
        self.plane.apply({**head, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    def budget(self, available: int, name: str = "web") -> None:
        """A budget that keeps so many pods of a Deployment, in force."""
        spec = {"minAvailable": available, "selector": {"matchLabels": {"app": name}}}
        head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
        self.plane.apply({**head, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        path = kinds.POD_DISRUPTION_BUDGET.path(NAMESPACE, name)

        def is_counted() -> bool:
            request = self.plane.request("GET", path)
            status: Mapping[str, object] = request.get("status", {})
            generation = request["metadata"]["generation"]
            return status.get("observedGeneration") == generation and status.get("currentHealthy", 0) != 0

        self.plane.until(is_counted, f"budget {name} to count its pods")

    def lose(self, instance: SimulatedInstance) -> None:
        """Remove an instance without warning, as ``lost`` in a fault script does."""
        ending = msgspec.structs.replace(instance, ending_at=datetime.now(UTC))
        data = {"instance.json": msgspec.json.encode(ending).decode()}
        path = kinds.CONFIG_MAP.path(simulated_instances.INSTANCE_NAMESPACE, instance.node_name)
        self.plane.request("PATCH", path, {"data": data}, _MERGE)

    def patch(self, kind: Kind[T], name: str, change: Json) -> None:
        """Change an object by hand."""
        self.plane.request("PATCH", kind.path(name=name), change, _MERGE)

    def remove(self, claim: NodeClaim) -> None:
        """Delete a claim by hand."""
        self.plane.request("DELETE", kinds.NODE_CLAIM.path(name=claim.metadata.name))

    def pool_condition(self, pool: str, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a pool's condition; empty where it has none."""
        (nodepool,) = (listed_pool for listed_pool in self.all(kinds.NODE_POOL) if listed_pool.metadata.name == pool)
        condition = conditions.find_condition(nodepool.status.conditions, kind)
        return (condition.status, condition.reason, condition.message) if condition else ("", "", "")

    def clear(self) -> None:
        """Delete everything, finalizers included."""
        cleanup.empty(self.plane)


def at_rest(
    running: Controller, passes: int, progress: Callable[[], int], fault: Callable[[], str] = lambda: ""
) -> Callable[[], str]:
    """A condition for ``WorkloadCluster.until``: during so many disruption passes nothing was at fault and nothing progressed.

    ``progress`` counts what must not happen any more, such as writes or commands; ``fault`` says what is not as it should be.
    """
    last, since = progress(), running.disruption_passes()

    def lacking() -> str:
        nonlocal last, since
        text, now = fault(), progress()
        if text or now != last:
            last, since = now, running.disruption_passes()
        quiet = running.disruption_passes() - since
        return text or ("" if quiet >= passes else f"quiet for {quiet:g} of {passes} disruption passes")

    return lacking


@contextmanager
def workload_cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    """An empty cluster with a node class and the controller's rights; empty again afterwards."""
    with deployed.installed(plane) as account:
        cluster = WorkloadCluster(plane, account)
        cluster.clear()
        cluster.node_class()
        try:
            yield cluster
        finally:
            cluster.clear()


#: Whether pods are nominated to their node.
WITH, WITHOUT = "with-nomination", "without-nomination"
_FLAGS = {WITH: (NOMINATION, "true"), WITHOUT: (NOMINATION, "false")}


def ways(*slice_: str) -> list[object]:
    """Flags of nomination as parameters, both ways; what is not in the slice is for `make soak`."""
    return [pytest.param(flags, id=name, marks=_marks(name in slice_)) for name, flags in _FLAGS.items()]


def cases(every: Iterable[object], *slice_: tuple[object, str]) -> list[object]:
    """Pairs of a case and flags of nomination: all of them; those outside the slice are for `make soak`."""
    return [
        pytest.param(case, flags, id=f"{case}-{name}", marks=_marks((case, name) in slice_))
        for case in every
        for name, flags in _FLAGS.items()
    ]


def _marks(is_in_slice: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if is_in_slice else (pytest.mark.soak,)
