"""Gives plans to the real kube-scheduler: nodes without kubelets, pods that only need to be bound, one scenario after another.

Only the API server and the scheduler run: no autoscaler, no controllers, no kubelet. A beacon shows what the scheduler has seen:
a node of its own that no scenario's pod tolerates. A probe pod is bound to it once the scheduler has seen the beacon's latest
label, and, since watches are ordered, everything written to pods and nodes before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from controlplane.harness import ApiError, ControlPlane, Json
from karpenter.api import kinds
from karpenter.api.core import Node, Pod
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.api.scheduling_constraints import Taint
from karpenter.api.storage import CSINode
from karpenter.scheduling.solution import Solution
from support.agreement_scenarios import Scenario
from support.builders import node, pod, replaced, taint, tolerating
from support.kube_filters import Amounts, NodeInfo
from support.plan_checker_cluster import placement_targets, runs_daemon, variants_of_claim

_BEACON = "beacon"
_MERGE = "application/merge-patch+json"
_GATE = "tests/wait"
_CLOSED = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
_POLL_SECONDS = 0.02
_DEADLINE_SECONDS = 20.0
_AT_ONCE: Json = {"gracePeriodSeconds": 0}
_SYSTEM = "kube-system"

T = TypeVar("T")

#: Namespace and name.
Key = tuple[str, str]


@dataclass
class SchedulerHarness:
    """A control plane whose scheduler runs scenarios."""

    plane: ControlPlane
    _signals: int = 0

    def open(self) -> None:
        """Set up the beacon."""
        marked = node(_BEACON, {"cpu": "1"}, taints=[taint(_BEACON)])
        bare = replaced(marked, metadata=replaced(marked.metadata, labels={}))
        self._node(manifest_of(kinds.NODE, bare), marked.spec.taints)

    # -- what is there ------------------------------------------------------------------------------------------------

    @contextmanager
    def applied(self, scenario: Scenario) -> Iterator[None]:
        """Everything of a scenario but the pods that wait; nothing of it afterwards."""
        for space in scenario.namespaces:
            self.keep(kinds.NAMESPACE.path(), manifest_of(kinds.NAMESPACE, space))
        for thing in scenario.storage:
            self._store(thing)
        try:
            cluster = scenario.cluster()
            for listed_node in scenario.nodes:
                self._node(manifest_of(kinds.NODE, listed_node), listed_node.spec.taints)
            for each in scenario.running:
                self._create(each)
            for target in placement_targets(cluster, Solution()):
                self._daemons(scenario, target.variants[0])
            self.until_seen()
            yield
        finally:
            self._clear(scenario)

    def _clear(self, scenario: Scenario) -> None:
        for space in (*(namespace.metadata.name for namespace in scenario.namespaces), _SYSTEM):
            self.clear_namespace(space)
        self.remove_nodes()

    def clear_namespace(self, space: str) -> None:
        """All pods of a namespace are gone."""
        self.plane.request("DELETE", kinds.POD.path(space), _AT_ONCE)

    def add_node(self, listed: Node) -> None:
        """A node that is open to pods."""
        self._node(manifest_of(kinds.NODE, listed), listed.spec.taints)

    def remove_nodes(self) -> None:
        """All nodes but the beacon are gone."""
        for obj in self.plane.request("GET", kinds.NODE.path())["items"]:
            name = obj["metadata"]["name"]
            if name != _BEACON:
                self.plane.request("DELETE", kinds.NODE.path(name=name))
                self.delete(kinds.CSI_NODE.path(name=name))

    def keep(self, path: str, manifest: Json) -> None:
        """Make something that stays, as namespaces and volumes do; a scenario applied again finds it there."""
        try:
            self.plane.request("POST", path, manifest)
        except ApiError as error:
            if error.status != 409:
                raise

    def delete(self, path: str) -> None:
        try:
            self.plane.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def _store(self, thing: Wire) -> None:
        (kind,) = (api_kind for api_kind in kinds.KINDS.values() if isinstance(thing, api_kind.type))
        manifest = manifest_of(kind, thing)
        spec: dict[str, object] = manifest["spec"]
        if kind is kinds.PERSISTENT_VOLUME:
            spec |= {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
            spec["csi"] = {**spec["csi"], "volumeHandle": "any"}
        elif kind is kinds.PERSISTENT_VOLUME_CLAIM:
            spec |= {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
        elif isinstance(thing, CSINode):
            for driver in spec["drivers"]:  # type: ignore[attr-defined]
                driver["nodeID"] = "any"
        self.keep(kind.path(getattr(thing.metadata, "namespace", "")), manifest)  # type: ignore[attr-defined]

    def _node(self, manifest: Json, taints: Iterable[Taint]) -> None:
        """A node with certain taints; admission marks new ones as not ready, and no other component removes that taint."""
        self.plane.request("POST", kinds.NODE.path(), manifest)
        self._open(manifest["metadata"]["name"], taints)

    def _open(self, name: str, taints: Iterable[Taint]) -> None:
        result = [json.loads(kinds.NODE.encode(replaced(_ANY, spec=replaced(_ANY.spec, taints=tuple(taints)))))]
        self.plane.request(
            "PATCH", kinds.NODE.path(name=name), {"spec": {"taints": result[0]["spec"].get("taints", [])}}, _MERGE
        )

    def _daemons(self, scenario: Scenario, node_info: NodeInfo) -> None:
        """The scenario's DaemonSets run on the node."""
        for daemon_set in scenario.daemons:
            spec = daemon_set.spec.template.spec
            if runs_daemon(spec, node_info):
                running = pod(f"{daemon_set.metadata.name}-{node_info.name}", meta={"namespace": _SYSTEM})
                self._create(replaced(running, spec=replaced(spec, node_name=node_info.name)))

    # -- pods -----------------------------------------------------------------------------------------------------------

    def _create(self, each: Pod, *, gated: bool = False) -> None:
        manifest = manifest_of(kinds.POD, each)
        spec: dict[str, object] = manifest["spec"]
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            container.setdefault("name", "main")
            container["image"] = "pause"
        if gated:
            spec["schedulingGates"] = [{"name": _GATE}]
        self.plane.request("POST", kinds.POD.path(each.metadata.namespace), manifest)

    def alone(self, each: Pod) -> str:
        """The node the scheduler binds a single pod to, empty where it finds none; the pod is gone afterwards."""
        key = _key(each)
        self._create(each)
        try:
            return self._until(lambda: self._answer(key), f"an answer about {key}")
        finally:
            self.plane.request("DELETE", kinds.POD.path(*key), _AT_ONCE)

    def bound(self, each: Pod) -> str:
        """The node the scheduler binds a pod to, which stays; empty where it finds none."""
        self._create(each)
        return self._until(lambda: self._answer(_key(each)), f"an answer about {_key(each)}")

    def _answer(self, key: Key) -> str | None:
        request = self.plane.request("GET", kinds.POD.path(*key))
        where = request["spec"].get("nodeName", "")
        conditions = request["status"].get("conditions", ())
        refused = any(
            condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
            for condition in conditions
        )
        return where if where or refused else None

    def carried_out(self, scenario: Scenario, plan: Solution) -> dict[Key, str]:
        """Where the plan's pods are bound, each nominated to its node, once all are bound or time is up."""
        node_infos = {
            new_nodeclaim.name: _chosen(scenario, plan, new_nodeclaim.name) for new_nodeclaim in plan.new_claims
        }
        for node_info in node_infos.values():
            self.plane.request("POST", kinds.NODE.path(), _as_node(node_info))
            self._daemons(scenario, node_info)
        meant = {_key(each): group.node_name for group in plan.placed_on_existing for each in group.pods}
        meant |= {_key(each): new_nodeclaim.name for new_nodeclaim in plan.new_claims for each in new_nodeclaim.pods}
        pending_pods = [each for each in scenario.pods if _key(each) in meant]
        for each in pending_pods:
            self._create(each, gated=True)
            path = kinds.POD.path(*_key(each), "status")
            self.plane.request("PATCH", path, {"status": {"nominatedNodeName": meant[_key(each)]}}, _MERGE)
        for node_info in node_infos.values():
            self._open(node_info.name, node_info.taints)
        self.until_seen()
        for each in pending_pods:
            self.plane.request("PATCH", kinds.POD.path(*_key(each)), {"spec": {"schedulingGates": None}}, _MERGE)
        return self._bound(scenario, set(meant))

    def _bound(self, scenario: Scenario, wanted: set[Key]) -> dict[Key, str]:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            bound = {key: where for key, where in self._where(scenario) if key in wanted and where}
            if len(bound) == len(wanted) or time.monotonic() > deadline:
                return bound
            time.sleep(_POLL_SECONDS)

    def _where(self, scenario: Scenario) -> Iterator[tuple[Key, str]]:
        for space in scenario.namespaces:
            for obj in self.plane.request("GET", kinds.POD.path(space.metadata.name))["items"]:
                yield (space.metadata.name, obj["metadata"]["name"]), obj["spec"].get("nodeName", "")

    def why(self, key: Key) -> str:
        """What the scheduler says about a pod it has not bound."""
        conditions = self.plane.request("GET", kinds.POD.path(*key))["status"].get("conditions", ())
        return "; ".join(element.get("message", "") for element in conditions)

    # -- what the scheduler has seen ------------------------------------------------------------------------------------

    def until_seen(self) -> None:
        """Wait until the scheduler knows everything written so far."""
        self._signals += 1
        signal = str(self._signals)
        self.plane.request("PATCH", kinds.NODE.path(name=_BEACON), {"metadata": {"labels": {_BEACON: signal}}}, _MERGE)
        probe = pod(f"probe-{signal}", node_selector={_BEACON: signal}, tolerations=(tolerating(_BEACON),))
        assert self.alone(probe) == _BEACON or self._tried_again(probe)

    def _tried_again(self, probe: Pod) -> bool:
        """The first try may have come before the label: then the scheduler tries again when it sees it."""
        again = replaced(probe, metadata=replaced(probe.metadata, name=f"{probe.metadata.name}-again"))
        return self._until(lambda: self.alone(again) == _BEACON or None, "the scheduler to see the beacon")

    @staticmethod
    def _until(look: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while (until := look()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {what}")
            time.sleep(_POLL_SECONDS)
        return until


_ANY = node("any", {})


def _key(each: Pod) -> Key:
    return (each.metadata.namespace, each.metadata.name)


def manifest_of(kind: Kind[Wire], thing: object) -> Json:
    """An object as a client would create it."""
    loads: Json = json.loads(kind.encode(thing))
    for name in ("uid", "creationTimestamp"):
        loads["metadata"].pop(name, None)
    return loads


def _chosen(scenario: Scenario, plan: Solution, name: str) -> NodeInfo:
    """What the cloud makes of a claim: any of the nodes it may become, without its DaemonSets."""
    (new_nodeclaim,) = (new_claim for new_claim in plan.new_claims if new_claim.name == name)
    cluster = Scenario(scenario.name, pools=scenario.pools).cluster()
    return Random(f"{scenario.name}/{name}").choice(
        variants_of_claim(cluster, new_nodeclaim.claim, new_nodeclaim.instance_types)
    )


def _as_node(node_info: NodeInfo) -> Json:
    head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_info.name, "labels": dict(node_info.labels)}}
    amounts = _written(node_info.free)
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]
    return {
        **head,
        "spec": {"taints": [_CLOSED]},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": ready},
    }


def _written(amounts: Amounts) -> Mapping[str, str]:
    return {name: f"{int(amount * 1000)}m" for name, amount in amounts.items()}
