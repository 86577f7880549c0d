"""Pods of one workload are kept with one copy of what they have in common."""

from __future__ import annotations

import pytest

from karpenter.api.core import Container, Pod, PodSpec
from karpenter.api.kinds import POD
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.api.scheduling_constraints import Toleration
from karpenter.kube.informer import Informer
from karpenter.kube.shared_pod_parts import SharedPodParts
from support.builders import pod
from support.followed_informers import ADDED, ScriptedReader, cancelled_after, event, in_virtual_time, listing


def _replica(name: str, cpu: str = "1", node: str = "") -> Pod:
    """A pod decoded by itself: nothing of it is another's."""
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="rs")
    meta = {"labels": {"app": "web"}, "owner_references": (owner,)}
    made = pod(
        name,
        {"cpu": cpu},
        meta={**meta, "resource_version": "20"},
        node_name=node,
        tolerations=(Toleration(key="spot"),),
    )
    return POD.decode(POD.encode(made))


def test_pods_of_one_workload_have_one_copy_of_what_is_equal() -> None:
    parts = SharedPodParts()
    first, second = parts.shared(_replica("a")), parts.shared(_replica("b", node="n1"))
    assert second == _replica("b", node="n1")
    assert second.spec.containers is first.spec.containers
    assert second.spec.tolerations is first.spec.tolerations
    assert second.metadata.labels is first.metadata.labels
    assert second.metadata.owner_references is first.metadata.owner_references


def test_a_pod_that_differs_keeps_what_differs() -> None:
    parts = SharedPodParts()
    parts.shared(_replica("a"))
    assert parts.shared(_replica("b", cpu="2")) == _replica("b", cpu="2")


def test_parts_that_are_encoded_alike_are_distinguished() -> None:
    spec = PodSpec(containers=(Container(),), init_containers=(Container(),), tolerations=(Toleration(),))
    bare = Pod(metadata=ObjectMeta(name="bare"), spec=spec)
    assert SharedPodParts().shared(bare) == bare


@pytest.mark.parametrize("count", [1, 50])
def test_values_that_were_evicted_are_shared_again(count: int) -> None:
    parts = SharedPodParts(max_values=2)
    for number in range(count):
        parts.shared(_replica(f"other-{number}", cpu=str(number + 2)))
    first, second = parts.shared(_replica("a")), parts.shared(_replica("b"))
    assert second.spec.containers is first.spec.containers


def test_an_informer_shares_what_lists_and_events_bring() -> None:
    reader = ScriptedReader([listing(_replica("a"), _replica("b"))], [[event(ADDED, _replica("c"))]])

    async def follow(_: object) -> list[Pod]:
        informer = Informer(reader, POD, share=SharedPodParts().shared)
        await cancelled_after(10, informer.run)
        return list(informer)

    followed = in_virtual_time(follow)
    assert [each.metadata.name for each in followed] == ["a", "b", "c"]
    assert len({id(each.spec.containers) for each in followed}) == 1
