"""What a viewer with few rights sees waiting."""

from __future__ import annotations

from karpenter.api.core import Pod
from karpenter.api.meta import OwnerReference
from karpenter.console.console_input import ConsoleInput
from karpenter.console.visible_objects import Visibility, visible_input
from karpenter.state import ClusterState
from support.builders import NOW, UNSCHEDULABLE, feed, pod


def replica(name: str, namespace: str, *, is_marked: bool) -> Pod:
    owner = OwnerReference(
        api_version="apps/v1", kind="ReplicaSet", name="web", uid=f"{namespace}-web", controller=True
    )
    meta = {"namespace": namespace, "uid": f"{namespace}-{name}", "owner_references": (owner,)}
    return pod(name, {"cpu": "1"}, meta=meta, status={"conditions": (UNSCHEDULABLE,) if is_marked else ()})


def test_pods_that_wait_with_their_siblings_are_shown_to_those_who_may_list_them() -> None:
    pods = tuple(replica(name, where, is_marked=name == "a") for where in ("shop", "bank") for name in ("a", "b"))
    state = ClusterState()
    state.untried_pods.enable()
    whole = ConsoleInput(feed(state, pods).snapshot(), NOW, pods, ())
    seen = visible_input(whole, Visibility(pod_namespaces=frozenset({"shop"})))
    waiting = [
        (each.metadata.namespace, each.metadata.name) for group in seen.snapshot.pod_groups for each in group.pods
    ]
    assert sorted(waiting) == [("shop", "a"), ("shop", "b")]
