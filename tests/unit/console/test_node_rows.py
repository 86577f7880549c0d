"""The nodes of a console view: states, fill, prices, and what holds a node."""

from __future__ import annotations

import pytest

from karpenter.api.meta import Condition, Wire
from karpenter.console.node_rows import NodeState
from karpenter.model import labels
from support.builders import NOW, budget, claim, node, node_and_claim, replaced, seconds, taint
from support.console_cases import event, row_of, view_of
from support.disruption_cases import drifted, on, pool, running

_REASON = Condition(type="DisruptionReason", status="True", reason="Underutilized")


def replaced_node(wires: list[Wire], **spec: object) -> list[Wire]:
    own, *others = wires
    return [replaced(own, spec=replaced(own.spec, **spec)), *others]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("objects", "state"),
    [
        pytest.param(claim("c"), NodeState.LAUNCHING, id="a claim without an instance is launching"),
        pytest.param(claim("c", {"cpu": 4}, provider_id="p://c"), NodeState.LAUNCHED, id="an instance without a Node"),
        pytest.param(
            node_and_claim("n", {"cpu": 4}, initialized=False), NodeState.REGISTERED, id="a Node that still starts"
        ),
        pytest.param(running("n", conditions=()), NodeState.INITIALIZED, id="an initialized node"),
        pytest.param(running("n"), NodeState.CONSOLIDATABLE, id="consolidateAfter is over"),
        pytest.param(running("n", deleted=True), NodeState.TERMINATING, id="a claim that is being deleted"),
        pytest.param(node("n", {"cpu": 4}), NodeState.UNMANAGED, id="a node of nobody's"),
    ],
)
def test_a_node_has_the_state_that_its_objects_say(objects: object, state: NodeState) -> None:
    """OPS-805: claim states."""
    (row,) = view_of(pool(), objects).nodes
    assert row.state is state


@pytest.mark.parametrize("key", ["karpenter.sh/disrupted", "karpenter.sh/disruption"])
def test_a_node_with_the_disruption_taint_is_disrupting_and_cordoned_and_says_why(key: str) -> None:
    """OPS-805: nodes under v1 disruption are not healthy; the key of older releases counts as well."""
    wires = replaced_node(running("n", conditions=(_REASON,)), taints=(taint(key),))
    row = row_of("n", view_of(pool(), wires))
    assert (row.state, row.state_reason, row.cordoned) == (NodeState.DISRUPTING, "Underutilized", True)


def test_a_claim_without_its_node_shows_what_was_asked_for() -> None:
    """OPS-V1: it is listed by claim, not ready, with type and capacity type; its fill is what its pods will request."""
    own = {labels.INSTANCE_TYPE: "m", labels.ZONE: "z1", labels.CAPACITY_TYPE: "spot"}
    given = claim("c", {"cpu": 4}, labels=own, provider_id="p://c", requests={"cpu": "3"})
    row = row_of("c", view_of(pool(), given))
    assert (row.instance_type, row.capacity_type, row.ready, row.planned) == ("m", "spot", False, True)
    assert row.fill("cpu") == pytest.approx(0.75)
    assert row.price_per_hour == 1.0


def test_the_fill_is_what_bound_pods_request_of_what_is_allocatable() -> None:
    row = row_of("n", view_of(pool(), running("n", "m", 1, 2)))
    assert (row.fill("cpu"), row.pod_count, row.price_per_hour) == (0.75, 2, 2.0)


@pytest.mark.parametrize(
    ("text", "price"), [("0.125", 0.125), ("nonsense", None), ("-1", None), ("nan", None), ("inf", None)]
)
def test_the_price_label_of_eks_node_viewer_counts_where_it_is_a_price(text: str, price: float | None) -> None:
    """OPS-803, OPS-V2: a node without a known price takes it from the label; what is no price is not taken for one."""
    own = {"eks-node-viewer/instance-price": text}
    assert row_of("n", view_of(pool(), node("n", {"cpu": 4}, labels=own))).price_per_hour == price


def test_a_drifted_node_says_what_it_drifted_from() -> None:
    assert row_of("n", view_of(pool(), running("n", conditions=drifted(NOW)))).drift == "NodePoolDrifted"


def test_a_protected_pod_holds_its_node() -> None:
    wires = running("n"), on("n", 1, meta={"annotations": {"karpenter.sh/do-not-disrupt": "true"}})
    (held,) = row_of("n", view_of(pool(), wires)).held_by
    assert "do-not-disrupt" in held
    assert "n-0" in held


def test_several_pods_of_one_disruption_budget_hold_their_node_in_one_sentence() -> None:
    wires = (
        running("n"),
        on("n", 1, 1, 1, meta={"labels": {"app": "db"}}),
        budget("db", {"app": "db"}, max_unavailable=0),
    )
    held = row_of("n", view_of(pool(), wires)).held_by
    assert held == ("PDB prevents pod evictions (PodDisruptionBudget=[default/db])",)


def test_without_a_blocker_of_its_own_a_node_shows_the_last_event_about_what_keeps_it() -> None:
    """What only the controller knows: Karpenter writes the same events."""
    events = [
        event("Unconsolidatable", "Node", "n", "Can't replace with a cheaper node", seconds(60)),
        event("Unconsolidatable", "Node", "n", "an older reason", NOW),
    ]
    assert row_of("n", view_of(pool(), running("n"), events=events)).held_by == ("Can't replace with a cheaper node",)


def test_where_nodeclaims_may_not_be_read_their_nodes_are_shown_all_the_same() -> None:
    """OPS-803: scheduling leaves a Node of a NodePool out until its claim is seen; people want to see it."""
    own, _claim, *pods = running("n", "m", 1)
    row = row_of("n", view_of(pool(), own, pods))
    assert (row.pool, row.instance_type, row.price_per_hour, row.fill("cpu")) == ("np", "m", 2.0, 0.25)
    assert (row.state, row.pod_count) == (NodeState.UNMANAGED, 1)
