"""Successors of moved pods are nominated to the places their move was decided for."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import msgspec
import pytest

from karpenter.api.core import Pod
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.disruption.successor_nominations import SuccessorNominations
from karpenter.provisioning.nomination import DisabledNominator
from karpenter.scheduling.solution import PlacedPods
from karpenter.state.cluster_state import ClusterState
from support.builders import node_and_claim, owner, pod
from support.consolidation_cases import begin, deployment, runs, scale
from support.examples import series
from support.virtual_cluster import VirtualCluster, in_virtual_time


@dataclass
class RecordingNominator(DisabledNominator):
    """Who was nominated to which node."""

    pods: list[tuple[str, str, str]] = field(default_factory=list)

    async def nominate_pod(self, pod: Pod, claim_name: str, node_name: str) -> None:
        self.pods.append((pod.metadata.name, claim_name, node_name))


def owned(name: str, by: str = "rs", **fields: object) -> Pod:
    return pod(name, meta={"owner_references": (owner("ReplicaSet", by),)}, **fields)


class NominationCase:
    """Two nodes; places for two pods of one owner on the first, for one on the second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = ClusterState()
        for name in ("a", "b"):
            node, claim = node_and_claim(name, {"cpu": "4"})
            self.state.set_node(node)
            self.state.set_claim(claim)
        self.nominator = RecordingNominator()
        self.nominations = SuccessorNominations(self.state, self.nominator, lambda: self.now)
        moved = [owned(f"old-{number}", node_name="gone") for number in range(3)]
        places = (PlacedPods("claim-a", "a", tuple(moved[:2])), PlacedPods("b", "b", tuple(moved[2:])))
        self.nominations.add_command(Command(DisruptionReason.UNDERUTILIZED, (), placed_on_existing=places))

    def places(self, *new: Pod) -> list[str]:
        """Where the pods are planned after they appeared; empty where they are not."""
        for listed_pod in new:
            self.nominations.pod_added(listed_pod)
        return [self.state.planned_nodes.get(given_pod.metadata.uid, "") for given_pod in new]


def named(state: ClusterState) -> None:
    """The claim of the first node knows its Node."""
    claim = state.claim("claim-a")
    assert claim is not None
    state.set_claim(msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, node_name="a")))


def test_each_place_is_given_once_to_pods_of_its_owner() -> None:
    owed = NominationCase()
    named(owed.state)
    assert owed.places(owned("x", by="other"), owned("n1"), owned("n2"), owned("n3"), owned("n4")) == [
        "",
        "claim-a",
        "claim-a",
        "b",
        "",
    ]


def test_pods_that_have_a_node_or_no_owner_get_none() -> None:
    owed = NominationCase()
    named(owed.state)
    assert owed.places(owned("bound", node_name="b"), pod("naked")) == ["", ""]
    assert owed.places(owned("n1")) == ["claim-a"]


def test_places_on_nodes_that_are_gone_are_not_given() -> None:
    owed = NominationCase()
    owed.state.remove_claim("claim-a")
    assert owed.places(owned("n1"), owned("n2")) == ["b", ""]


def test_after_half_an_hour_nothing_is_owed() -> None:
    owed = NominationCase()
    named(owed.state)
    owed.now = 1801.0
    assert owed.places(owned("n1")) == [""]


def test_a_successor_with_a_planned_node_is_nominated_there() -> None:
    async def main() -> list[tuple[str, str, str]]:
        owed = NominationCase()
        named(owed.state)
        owed.places(owned("n1"), owned("n2"), owned("n3"))
        running = asyncio.create_task(owed.nominations.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        return sorted(owed.nominator.pods)

    assert asyncio.run(main()) == [("n1", "claim-a", "a"), ("n2", "claim-a", "a"), ("n3", "b", "b")]


@pytest.mark.parametrize("seed", series([2, 5, 6], 2))
@in_virtual_time
async def test_what_was_packed_together_stays_packed_together(cluster: VirtualCluster, seed: int) -> None:
    """Nothing is launched for pods that were moved, although the scheduler spreads. Without promises it is, for these seeds."""
    numbers = random.Random(seed)
    await begin(cluster, *(deployment(f"w{n}", 8, f"{numbers.randrange(200, 1500, 50)}m") for n in range(10)))
    await asyncio.sleep(300)
    for number in range(10):
        await scale(cluster, f"w{number}", 3)
    await asyncio.sleep(900)
    assert await runs(cluster, 30)
    assert [line for line in cluster.lines("disrupting node(s)") if line["reason"] == "Underutilized"]
    assert not cluster.lines("consolidation was undone")
