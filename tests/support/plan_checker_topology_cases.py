"""Valid plans, and the same with one fault of affinity, spread or volumes each, for the tests of the plan checker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api.core import Pod
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.api.scheduling_constraints import PodAffinityTerm
from support.builders import (
    taint,
)
from support.plan_checker_cases import (
    APP,
    HOST,
    ZONE,
    Case,
    affinity_term,
    new_nodeclaim_of,
    node_in_zone,
    placed_on,
    plan_of,
    pod_affinity,
    pod_anti_affinity,
    selector,
    spread,
    spread_pod,
    web_pod,
)
from support.volume_builders import csi_node, pv, pvc, storage_class, user, zonal


def _affinity() -> Iterable[Case]:
    db = web_pod("db", own={"app": "db"}, node_name="n")
    near_db = web_pod("p", affinity=pod_affinity(affinity_term(match={"app": "db"})))
    there = [node_in_zone("n"), db]
    yield Case(
        "affinity to a running pod",
        plan_of(new_nodeclaim_of("c", near_db)),
        plan_of(new_nodeclaim_of("c", near_db, zones=("z2",))),
        "near",
        there,
    )
    yield Case(
        "affinity of a new node whose zone is open",
        plan_of(new_nodeclaim_of("c", near_db)),
        plan_of(new_nodeclaim_of("c", near_db, zones=("z1", "z2"))),
        "near",
        there,
    )
    leader = web_pod("leader", own={"app": "db"})
    yield Case(
        "affinity to a planned pod",
        plan_of(new_nodeclaim_of("c", leader), new_nodeclaim_of("d", near_db)),
        plan_of(new_nodeclaim_of("c", leader), new_nodeclaim_of("d", near_db, zones=("z2",))),
        "near",
    )
    yield Case(
        "affinity to nobody",
        plan_of(new_nodeclaim_of("c", leader, near_db)),
        plan_of(new_nodeclaim_of("c", near_db)),
        "near",
    )
    flock = [web_pod(f"p{number}", affinity=pod_affinity(affinity_term())) for number in range(2)]
    yield Case(
        "affinity to themselves",
        plan_of(new_nodeclaim_of("c", flock[0]), new_nodeclaim_of("d", flock[1])),
        plan_of(new_nodeclaim_of("c", flock[0]), new_nodeclaim_of("d", flock[1], zones=("z2",))),
        "near",
    )
    both = {"app": "web", "tier": "x"}
    picky = web_pod("p", own={}, affinity=pod_affinity(affinity_term(), affinity_term(match={"tier": "x"})))
    full, half, rest = web_pod("full", own=both), web_pod("half"), web_pod("rest", own={"tier": "x"})
    yield Case(
        "affinity to pods that match all terms at once",
        plan_of(new_nodeclaim_of("c", full, picky)),
        plan_of(new_nodeclaim_of("c", half, rest, picky)),
        "near",
    )
    strange = web_pod("p", affinity=pod_affinity(affinity_term("rack")))
    yield Case(
        "affinity by a label the node will not have",
        plan_of(new_nodeclaim_of("c", strange, own={"rack": "r"})),
        plan_of(new_nodeclaim_of("c", strange)),
        "no label rack",
    )
    far_space = web_pod("p", affinity=pod_affinity(affinity_term(namespaces=("other",))))
    yield Case(
        "affinity to another namespace",
        plan_of(new_nodeclaim_of("c", web_pod("q", space="other"), far_space)),
        plan_of(new_nodeclaim_of("c", web_pod("q"), far_space)),
        "near",
    )


def _anti_affinity() -> Iterable[Case]:
    def case(name: str, one: Pod, other: Pod, more: Mapping[str, object] = {}) -> Case:
        apart = plan_of(new_nodeclaim_of("c", one), new_nodeclaim_of("d", other, zones=("z2",)))
        return Case(name, apart, plan_of(new_nodeclaim_of("c", one), new_nodeclaim_of("d", other)), "far", more=more)

    lone = web_pod("p", affinity=pod_anti_affinity(affinity_term()))
    yield case("anti-affinity between zones", lone, web_pod("q"))
    yield Case(
        "anti-affinity between hosts",
        plan_of(
            new_nodeclaim_of("c", web_pod("a", affinity=pod_anti_affinity(affinity_term(HOST)))),
            new_nodeclaim_of("d", web_pod("b")),
        ),
        plan_of(new_nodeclaim_of("c", web_pod("a", affinity=pod_anti_affinity(affinity_term(HOST))), web_pod("b"))),
        "far",
    )
    yield Case(
        "anti-affinity of an open zone",
        plan_of(new_nodeclaim_of("c", lone), new_nodeclaim_of("d", web_pod("q"), zones=("z2", "z3"))),
        plan_of(new_nodeclaim_of("c", lone), new_nodeclaim_of("d", web_pod("q"), zones=("z1", "z2"))),
        "far",
    )
    grump = web_pod("old", own={}, affinity=pod_anti_affinity(affinity_term()), node_name="n")
    yield Case(
        "anti-affinity of a running pod",
        plan_of(new_nodeclaim_of("c", web_pod("p"), zones=("z2",))),
        plan_of(new_nodeclaim_of("c", web_pod("p"))),
        "far",
        [node_in_zone("n"), grump],
    )
    yield case(
        "anti-affinity to a listed namespace",
        web_pod("p", affinity=pod_anti_affinity(affinity_term(namespaces=("other",)))),
        web_pod("q", space="other"),
    )
    chosen = pod_anti_affinity(affinity_term(namespace_selector=selector({"team": "a"})))
    yield case(
        "anti-affinity to chosen namespaces",
        web_pod("p", affinity=chosen),
        web_pod("q", space="other"),
        {"namespaces": {"other": {"team": "a"}}},
    )
    everywhere = pod_anti_affinity(affinity_term(namespace_selector=LabelSelector()))
    yield case("anti-affinity to all namespaces", web_pod("p", affinity=everywhere), web_pod("q", space="other"))
    v1, v2 = {**APP, "v": "1"}, {**APP, "v": "2"}
    versions = pod_anti_affinity(affinity_term(mismatch_label_keys=("v",)))
    yield case("anti-affinity to other versions", web_pod("p", own=v1, affinity=versions), web_pod("q", own=v2))
    same = pod_anti_affinity(affinity_term(match_label_keys=("v",)))
    yield case("anti-affinity to its own version", web_pod("p", own=v1, affinity=same), web_pod("q", own=v1))
    without = LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="NotIn", values=("x",)),))
    inverse = pod_anti_affinity(PodAffinityTerm(topology_key=ZONE, label_selector=without))
    yield case(
        "anti-affinity to pods that are not something", web_pod("p", own={"app": "x"}, affinity=inverse), web_pod("q")
    )


def _spread_domains() -> Iterable[Case]:
    three = [spread_pod(f"p{number}") for number in range(3)]
    split = plan_of(new_nodeclaim_of("c", *three[:2]), new_nodeclaim_of("d", three[2], zones=("z2",)))
    empty = [node_in_zone("n1"), node_in_zone("n2", "z2"), node_in_zone("n3", "z3")]
    yield Case(
        "spread over zones",
        plan_of(placed_on("n1", three[0]), placed_on("n2", three[1]), placed_on("n3", three[2])),
        plan_of(placed_on("n1", *three[:2]), placed_on("n2", three[2])),
        "spread",
        empty,
    )
    yield Case(
        "spread over open zones",
        split,
        plan_of(new_nodeclaim_of("c", *three[:2]), new_nodeclaim_of("d", three[2], zones=("z1", "z2"))),
        "spread",
        empty[:2],
    )
    hosts = [spread_pod(f"p{number}", spread(HOST)) for number in range(2)]
    yield Case(
        "spread over hosts",
        plan_of(new_nodeclaim_of("c", hosts[0]), new_nodeclaim_of("d", hosts[1])),
        plan_of(new_nodeclaim_of("c", *hosts), new_nodeclaim_of("d", web_pod("q", own={}))),
        "spread",
    )
    wide = [spread_pod(f"p{number}", spread(min_domains=3)) for number in range(2)]
    yield Case(
        "minDomains",
        plan_of(placed_on("n1", wide[0]), placed_on("n2", wide[1])),
        plan_of(placed_on("n1", *wide)),
        "spread",
        empty[:2],
    )
    strange = [spread_pod("p", spread("rack"))]
    yield Case(
        "spread by a label the node will not have",
        plan_of(new_nodeclaim_of("c", *strange, own={"rack": "r"})),
        plan_of(new_nodeclaim_of("c", *strange)),
        "no label rack",
    )


def _spread_policies() -> Iterable[Case]:
    nodes = [node_in_zone("n1"), node_in_zone("n2", "z2")]
    taken = node_in_zone("n2", "z2", taints=[taint("dedicated")])

    def policy(**more: str) -> list[Pod]:
        return [spread_pod(f"p{number}", spread(**more), node_selector={ZONE: "z1"}) for number in range(2)]

    aware, unaware = policy(), policy(node_affinity_policy="Ignore")
    yield Case(
        "nodeAffinityPolicy", plan_of(placed_on("n1", *aware)), plan_of(placed_on("n1", *unaware)), "spread", nodes
    )

    def taints(value: str) -> list[Pod]:
        return [spread_pod(f"p{number}", spread(node_taints_policy=value)) for number in range(2)]

    yield Case(
        "nodeTaintsPolicy",
        plan_of(placed_on("n1", *taints("Honor"))),
        plan_of(placed_on("n1", *taints("Ignore"))),
        "spread",
        [node_in_zone("n1"), taken],
    )

    def versions(*values: str) -> list[Pod]:
        rule = spread(match_label_keys=("v",))
        return [spread_pod(f"p{number}", rule, own={**APP, "v": v}) for number, v in enumerate(values)]

    yield Case(
        "matchLabelKeys",
        plan_of(placed_on("n1", *versions("1", "2"))),
        plan_of(placed_on("n1", *versions("1", "1"))),
        "spread",
        nodes,
    )
    old = [web_pod(f"old{number}", node_name="n1") for number in range(2)]
    yield Case(
        "spread beside running pods",
        plan_of(placed_on("n2", spread_pod("p0"))),
        plan_of(placed_on("n1", spread_pod("p0"))),
        "spread",
        [*nodes, *old],
    )


def _volumes() -> Iterable[Case]:
    keeper = user("p", "data")
    away = {"storage": (pvc("data", "disk"), zonal("disk", "z2"))}
    yield Case(
        "volume of another zone",
        plan_of(new_nodeclaim_of("c", keeper, zones=("z2",))),
        plan_of(new_nodeclaim_of("c", keeper)),
        "volume",
        more=away,
    )
    asked = {"storage": (pvc("data", storage_class="standard"), storage_class("standard", {ZONE: ("z2",)}))}
    yield Case(
        "class of another zone",
        plan_of(new_nodeclaim_of("c", keeper, zones=("z2",))),
        plan_of(new_nodeclaim_of("c", keeper)),
        "volume",
        more=asked,
    )
    yield Case(
        "no such claim",
        plan_of(new_nodeclaim_of("c", web_pod("p"))),
        plan_of(new_nodeclaim_of("c", keeper)),
        "does not exist",
    )
    many = [thing for name in "abc" for thing in (pvc(name, f"disk-{name}"), pv(f"disk-{name}"))]
    full = plan_of(placed_on("n", user("p", "a", "b"), user("q", "c")))
    more = {"storage": (*many, csi_node("n", ebs=2))}
    yield Case(
        "attach limit", plan_of(placed_on("n", user("p", "a", "b"))), full, "attached", [node_in_zone("n")], more=more
    )


def topology_cases() -> Iterable[Case]:
    """Affinity, anti-affinity, spread and volumes."""
    for kind in (_affinity, _anti_affinity, _spread_domains, _spread_policies, _volumes):
        yield from kind()
