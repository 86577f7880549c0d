"""The cluster view of a provider's own controllers: by the instances that claims and Nodes name (AWS-027)."""

from __future__ import annotations

import msgspec

from karpenter.api.core import Node, NodeSpec
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import ObjectMeta
from karpenter.runtime.cluster_view import InstanceClusterView
from karpenter.state import ClusterState
from support.builders import claim as some_claim


class Watched:
    """A cluster state and its observers, updated in the order of a process."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.observation = InstanceClusterView(self.state)

    def claim(self, name: str, provider_id: str) -> NodeClaim:
        old, plain = self.state.claim(name), some_claim(name)
        new = msgspec.structs.replace(plain, status=msgspec.structs.replace(plain.status, provider_id=provider_id))
        self.state.set_claim(new)
        self.observation.on_claim(old, new)
        return new

    def without_claim(self, name: str) -> None:
        old = self.state.claim(name)
        self.state.remove_claim(name)
        self.observation.on_claim(old, None)

    def node(self, name: str, provider_id: str) -> Node:
        new = Node(metadata=ObjectMeta(name=name), spec=NodeSpec(provider_id=provider_id))
        old = self.state.node(name)
        self.state.set_node(new)
        self.observation.on_node(old, new)
        return new


def test_a_claim_is_found_by_its_instance_from_launch_to_end() -> None:
    watched = Watched()
    watched.claim("one", "")
    assert watched.observation.claim_of("") is None
    launched = watched.claim("one", "aws:///a/i-1")
    assert watched.observation.claim_of("i-1") is launched
    assert watched.observation.claim_of("i-2") is None
    watched.without_claim("one")
    assert watched.observation.claim_of("i-1") is None


def test_a_claim_that_names_another_instance_is_found_by_that_alone() -> None:
    watched = Watched()
    watched.claim("one", "aws:///a/i-1")
    edited = watched.claim("one", "aws:///a/i-2")
    assert watched.observation.claim_of("i-1") is None
    assert watched.observation.claim_of("i-2") is edited


def test_of_two_claims_with_one_instance_the_other_stays_when_one_goes() -> None:
    watched = Watched()
    watched.claim("a", "aws:///a/i-1")
    other = watched.claim("b", "aws:///a/i-1")
    watched.without_claim("a")
    assert watched.observation.claim_of("i-1") is other


def test_a_node_is_found_also_where_no_claim_names_its_instance() -> None:
    """AWS-536"""
    watched = Watched()
    node = watched.node("node-1", "aws:///a/i-1")
    assert watched.observation.claim_of("i-1") is None
    assert watched.observation.node_of("i-1") is node
