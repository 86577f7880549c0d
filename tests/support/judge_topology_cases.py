"""Lawful plans and planted faults of affinity, spread and volumes, for the judge of plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api.core import Pod
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.api.scheduling_constraints import PodAffinityTerm
from support.builders import (
    taint,
)
from support.judge_cases import (
    APP,
    HOST,
    ZONE,
    Case,
    about,
    buy,
    even,
    liking,
    plan_of,
    put,
    selector,
    shunning,
    spreading,
    standing,
    web,
)
from support.volume_builders import csi_node, pv, pvc, storage_class, user, zonal


def _affinity() -> Iterable[Case]:
    db = web("db", own={"app": "db"}, node_name="n")
    near_db = web("p", affinity=liking(about(match={"app": "db"})))
    there = [standing("n"), db]
    yield Case(
        "affinity to a running pod",
        plan_of(buy("c", near_db)),
        plan_of(buy("c", near_db, zones=("z2",))),
        "near",
        there,
    )
    yield Case(
        "affinity of a machine whose zone is open",
        plan_of(buy("c", near_db)),
        plan_of(buy("c", near_db, zones=("z1", "z2"))),
        "near",
        there,
    )
    leader = web("leader", own={"app": "db"})
    yield Case(
        "affinity to a planned pod",
        plan_of(buy("c", leader), buy("d", near_db)),
        plan_of(buy("c", leader), buy("d", near_db, zones=("z2",))),
        "near",
    )
    yield Case("affinity to nobody", plan_of(buy("c", leader, near_db)), plan_of(buy("c", near_db)), "near")
    flock = [web(f"p{number}", affinity=liking(about())) for number in range(2)]
    yield Case(
        "affinity to themselves",
        plan_of(buy("c", flock[0]), buy("d", flock[1])),
        plan_of(buy("c", flock[0]), buy("d", flock[1], zones=("z2",))),
        "near",
    )
    both = {"app": "web", "tier": "x"}
    picky = web("p", own={}, affinity=liking(about(), about(match={"tier": "x"})))
    full, half, rest = web("full", own=both), web("half"), web("rest", own={"tier": "x"})
    yield Case(
        "affinity to pods that match all terms at once",
        plan_of(buy("c", full, picky)),
        plan_of(buy("c", half, rest, picky)),
        "near",
    )
    strange = web("p", affinity=liking(about("rack")))
    yield Case(
        "affinity by a label the machine will not have",
        plan_of(buy("c", strange, own={"rack": "r"})),
        plan_of(buy("c", strange)),
        "no label rack",
    )
    far_space = web("p", affinity=liking(about(namespaces=("other",))))
    yield Case(
        "affinity to another namespace",
        plan_of(buy("c", web("q", space="other"), far_space)),
        plan_of(buy("c", web("q"), far_space)),
        "near",
    )


def _anti_affinity() -> Iterable[Case]:
    def case(name: str, one: Pod, other: Pod, more: Mapping[str, object] = {}) -> Case:
        apart = plan_of(buy("c", one), buy("d", other, zones=("z2",)))
        return Case(name, apart, plan_of(buy("c", one), buy("d", other)), "far", more=more)

    lone = web("p", affinity=shunning(about()))
    yield case("anti-affinity between zones", lone, web("q"))
    yield Case(
        "anti-affinity between hosts",
        plan_of(buy("c", web("a", affinity=shunning(about(HOST)))), buy("d", web("b"))),
        plan_of(buy("c", web("a", affinity=shunning(about(HOST))), web("b"))),
        "far",
    )
    yield Case(
        "anti-affinity of an open zone",
        plan_of(buy("c", lone), buy("d", web("q"), zones=("z2", "z3"))),
        plan_of(buy("c", lone), buy("d", web("q"), zones=("z1", "z2"))),
        "far",
    )
    grump = web("old", own={}, affinity=shunning(about()), node_name="n")
    yield Case(
        "anti-affinity of a running pod",
        plan_of(buy("c", web("p"), zones=("z2",))),
        plan_of(buy("c", web("p"))),
        "far",
        [standing("n"), grump],
    )
    yield case(
        "anti-affinity to a listed namespace",
        web("p", affinity=shunning(about(namespaces=("other",)))),
        web("q", space="other"),
    )
    chosen = shunning(about(namespace_selector=selector({"team": "a"})))
    yield case(
        "anti-affinity to chosen namespaces",
        web("p", affinity=chosen),
        web("q", space="other"),
        {"namespaces": {"other": {"team": "a"}}},
    )
    everywhere = shunning(about(namespace_selector=LabelSelector()))
    yield case("anti-affinity to all namespaces", web("p", affinity=everywhere), web("q", space="other"))
    v1, v2 = {**APP, "v": "1"}, {**APP, "v": "2"}
    versions = shunning(about(mismatch_label_keys=("v",)))
    yield case("anti-affinity to other versions", web("p", own=v1, affinity=versions), web("q", own=v2))
    same = shunning(about(match_label_keys=("v",)))
    yield case("anti-affinity to its own version", web("p", own=v1, affinity=same), web("q", own=v1))
    without = LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="NotIn", values=("x",)),))
    inverse = shunning(PodAffinityTerm(topology_key=ZONE, label_selector=without))
    yield case("anti-affinity to pods that are not something", web("p", own={"app": "x"}, affinity=inverse), web("q"))


def _spread_domains() -> Iterable[Case]:
    three = [spreading(f"p{number}") for number in range(3)]
    split = plan_of(buy("c", *three[:2]), buy("d", three[2], zones=("z2",)))
    empty = [standing("n1"), standing("n2", "z2"), standing("n3", "z3")]
    yield Case(
        "spread over zones",
        plan_of(put("n1", three[0]), put("n2", three[1]), put("n3", three[2])),
        plan_of(put("n1", *three[:2]), put("n2", three[2])),
        "spread",
        empty,
    )
    yield Case(
        "spread over open zones",
        split,
        plan_of(buy("c", *three[:2]), buy("d", three[2], zones=("z1", "z2"))),
        "spread",
        empty[:2],
    )
    hosts = [spreading(f"p{number}", even(HOST)) for number in range(2)]
    yield Case(
        "spread over hosts",
        plan_of(buy("c", hosts[0]), buy("d", hosts[1])),
        plan_of(buy("c", *hosts), buy("d", web("q", own={}))),
        "spread",
    )
    wide = [spreading(f"p{number}", even(min_domains=3)) for number in range(2)]
    yield Case(
        "minDomains", plan_of(put("n1", wide[0]), put("n2", wide[1])), plan_of(put("n1", *wide)), "spread", empty[:2]
    )
    strange = [spreading("p", even("rack"))]
    yield Case(
        "spread by a label the machine will not have",
        plan_of(buy("c", *strange, own={"rack": "r"})),
        plan_of(buy("c", *strange)),
        "no label rack",
    )


def _spread_policies() -> Iterable[Case]:
    nodes = [standing("n1"), standing("n2", "z2")]
    taken = standing("n2", "z2", taints=[taint("dedicated")])

    def policy(**more: str) -> list[Pod]:
        return [spreading(f"p{number}", even(**more), node_selector={ZONE: "z1"}) for number in range(2)]

    aware, unaware = policy(), policy(node_affinity_policy="Ignore")
    yield Case("nodeAffinityPolicy", plan_of(put("n1", *aware)), plan_of(put("n1", *unaware)), "spread", nodes)

    def taints(value: str) -> list[Pod]:
        return [spreading(f"p{number}", even(node_taints_policy=value)) for number in range(2)]

    yield Case(
        "nodeTaintsPolicy",
        plan_of(put("n1", *taints("Honor"))),
        plan_of(put("n1", *taints("Ignore"))),
        "spread",
        [standing("n1"), taken],
    )

    def versions(*values: str) -> list[Pod]:
        rule = even(match_label_keys=("v",))
        return [spreading(f"p{number}", rule, own={**APP, "v": v}) for number, v in enumerate(values)]

    yield Case(
        "matchLabelKeys",
        plan_of(put("n1", *versions("1", "2"))),
        plan_of(put("n1", *versions("1", "1"))),
        "spread",
        nodes,
    )
    old = [web(f"old{number}", node_name="n1") for number in range(2)]
    yield Case(
        "spread beside running pods",
        plan_of(put("n2", spreading("p0"))),
        plan_of(put("n1", spreading("p0"))),
        "spread",
        [*nodes, *old],
    )


def _volumes() -> Iterable[Case]:
    keeper = user("p", "data")
    away = {"storage": (pvc("data", "disk"), zonal("disk", "z2"))}
    yield Case(
        "volume of another zone",
        plan_of(buy("c", keeper, zones=("z2",))),
        plan_of(buy("c", keeper)),
        "volume",
        more=away,
    )
    asked = {"storage": (pvc("data", storage_class="standard"), storage_class("standard", {ZONE: ("z2",)}))}
    yield Case(
        "class of another zone",
        plan_of(buy("c", keeper, zones=("z2",))),
        plan_of(buy("c", keeper)),
        "volume",
        more=asked,
    )
    yield Case("no such claim", plan_of(buy("c", web("p"))), plan_of(buy("c", keeper)), "does not exist")
    many = [thing for name in "abc" for thing in (pvc(name, f"disk-{name}"), pv(f"disk-{name}"))]
    full = plan_of(put("n", user("p", "a", "b"), user("q", "c")))
    more = {"storage": (*many, csi_node("n", ebs=2))}
    yield Case("attach limit", plan_of(put("n", user("p", "a", "b"))), full, "attached", [standing("n")], more=more)


def topology_cases() -> Iterable[Case]:
    """Affinity, anti-affinity, spread and volumes."""
    for kind in (_affinity, _anti_affinity, _spread_domains, _spread_policies, _volumes):
        yield from kind()
