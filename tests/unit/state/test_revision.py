"""The state's revision moves with what decisions read, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from karpenter.api.meta import Condition
from karpenter.state.cluster_state import ClusterState
from support.builders import budget, claim, node_and_claim, node_pool, pod


def filled() -> ClusterState:
    state = ClusterState()
    node, owner = node_and_claim("n", {"cpu": "4"})
    state.set_node(node)
    state.set_claim(owner)
    state.set_pool(node_pool())
    state.set_pod(pod("p", {"cpu": "1"}, node_name="n"))
    state.set_pdb(budget("b", {"a": "b"}, max_unavailable=1))
    return state


def later(obj: msgspec.Struct, **fields: object) -> msgspec.Struct:
    """The object as another write left it; without fields nothing but its version has changed."""
    meta = msgspec.structs.replace(obj.metadata, resource_version="later")  # type: ignore[attr-defined]
    return msgspec.structs.replace(obj, metadata=meta, **fields)


def test_a_new_resource_version_alone_does_not_move_the_revision() -> None:
    """Kubelets and controllers write every few seconds what was there already."""
    state = filled()
    before = state.revision
    node, owner = node_and_claim("n", {"cpu": "4"})
    state.set_node(later(node))
    state.set_claim(later(owner))
    state.set_pool(later(node_pool()))
    state.set_pod(later(pod("p", {"cpu": "1"}, node_name="n")))
    state.set_pdb(later(budget("b", {"a": "b"}, max_unavailable=1)))
    assert state.revision == before


CHANGES: dict[str, Callable[[ClusterState], None]] = {
    "pod": lambda state: state.set_pod(pod("p", {"cpu": "2"}, node_name="n")),
    "pod-label": lambda state: state.set_pod(pod("p", {"cpu": "1"}, node_name="n", meta={"labels": {"a": "b"}})),
    "pod-gone": lambda state: state.remove_pod(("default", "p")),
    "node": lambda state: state.set_node(node_and_claim("n", {"cpu": "5"})[0]),
    "node-gone": lambda state: state.remove_node("n"),
    "condition": lambda state: state.set_claim(
        node_and_claim("n", {"cpu": "4"}, conditions=(Condition(type="Consolidatable", status="True"),))[1]
    ),
    "claim": lambda state: state.set_claim(claim("other")),
    "claim-gone": lambda state: state.remove_claim("claim-n"),
    "pool": lambda state: state.set_pool(node_pool(weight=3)),
    "pool-gone": lambda state: state.remove_pool("np"),
    "budget": lambda state: state.set_pdb(budget("b", {"a": "b"}, max_unavailable=2)),
    "budget-gone": lambda state: state.remove_pdb(("default", "b")),
    "mark": lambda state: state.mark_for_deletion("claim-n"),
    "unmark": lambda state: state.unmark_for_deletion("claim-n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_that_decisions_read_move_the_revision(change: str) -> None:
    """DIS §8.4 Beyond: whatever may change the answer."""
    state = filled()
    before = state.revision
    CHANGES[change](state)
    assert state.revision > before


def test_a_heartbeat_builds_no_state_node_and_its_version_is_kept() -> None:
    """A kubelet writes its Node every five minutes; what is written to it later names its newest version."""
    state = filled()
    before = state.state_nodes()
    state.set_node(later(node_and_claim("n", {"cpu": "4"})[0]))
    assert state.state_nodes() is before
    node = state.node("n")
    assert node is not None
    assert node.metadata.resource_version == "later"


def test_lists_of_nodes_and_claims_are_the_identical_tuples_until_one_of_them_changes() -> None:
    state = filled()
    nodes, claims = state.state_nodes(), state.claims()
    assert state.state_nodes() is nodes
    assert state.claims() is claims
    state.set_claim(claim("other"))
    assert len(state.state_nodes()) == len(nodes) + 1
    assert len(state.claims()) == len(claims) + 1


@pytest.mark.parametrize("change", CHANGES)
def test_lists_of_nodes_and_claims_are_those_of_a_state_that_never_listed_any(change: str) -> None:
    state, fresh = filled(), filled()
    state.state_nodes(), state.claims()
    for each in (state, fresh):
        CHANGES[change](each)
    assert state.state_nodes() == fresh.state_nodes()
    assert state.claims() == fresh.claims()


def test_a_claim_of_an_unknown_pool_is_listed_once_its_pool_exists() -> None:
    state = ClusterState()
    state.set_claim(claim("waits"))
    assert state.state_nodes() == ()
    state.set_pool(node_pool())
    assert len(state.state_nodes()) == 1
    state.remove_pool("np")
    assert state.state_nodes() == ()


def test_a_node_wanted_is_chosen_until_it_is_let_go_or_gone() -> None:
    """DIS-302: a static pool counts it from then on as one that goes."""
    state = filled()
    state.mark_disruption_pending("claim-n")
    assert state.is_disruption_pending("claim-n")
    assert not any(view.marked_for_deletion for view in state.state_nodes())
    state.mark_for_deletion("claim-n")
    assert all(view.marked_for_deletion for view in state.state_nodes())
    state.unmark_for_deletion("claim-n")
    assert not state.is_disruption_pending("claim-n")
    state.mark_disruption_pending("claim-n")
    state.remove_claim("claim-n")
    assert not state.is_disruption_pending("claim-n")
