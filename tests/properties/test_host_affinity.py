"""Pods that must share a host, in chains and trees: in whichever order they come, none is left out that another order places."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.scheduling.solution import Solution
from support.builders import left, node_pool, plan
from support.examples import examples
from support.instance_types import inc
from support.topology_builders import affinity_term, app_pods, pod_affinity_to

TYPES = inc(12)
NAMES = "abcdef"
#: Requests of the links: larger ones are placed first.
SIZES = ("1", "500m", "300m", "200m", "100m")


def linked(parents: Sequence[int], order: Sequence[int], counts: Sequence[int], prefix: str = "") -> list[list[Pod]]:
    """Pods of one app per link. Link n follows link ``parents[n - 1]``; ``order[n]`` says how large its pods are."""
    groups = []
    for link, size in enumerate(order):
        follows = pod_affinity_to(affinity_term(prefix + NAMES[parents[link - 1]])) if link else None
        groups.append(app_pods(counts[link], {"cpu": SIZES[size]}, app=prefix + NAMES[link], affinity=follows))
    return groups


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Parents of four or five links, chains among them, and the order of their sizes."""
    links = draw(st.integers(4, 5))
    chain = draw(st.booleans())
    parents = [link - 1 if chain else draw(st.integers(0, link - 1)) for link in range(1, links)]
    return parents, draw(st.permutations(range(links)))


def shares_hosts(result: Solution, parents: Sequence[int], prefix: str = "") -> bool:
    """Whether every planned pod has one of those that it follows on its node."""
    for claim in result.new_claims:
        apps = {pod.metadata.labels["app"] for pod in claim.pods}
        if any(prefix + NAMES[n] in apps and prefix + NAMES[p] not in apps for n, p in enumerate(parents, 1)):
            return False
    return True


_SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(_SETTINGS, max_examples=examples(160))
@given(trees(), st.booleans())
def test_chains_and_trees_of_pods_find_one_node_in_every_order(tree: tuple[list[int], list[int]], busy: bool) -> None:
    """SCH-555: companions are the whole connected group, whatever other pods fill up the nodes."""
    parents, order = tree
    others = app_pods(7, {"cpu": "700m"}, app="other") if busy else []
    result = plan(node_pool(), linked(parents, order, [1] * len(order)), others, types=TYPES)
    assert left(result) == []
    assert shares_hosts(result, parents)


@settings(_SETTINGS, max_examples=examples(80))
@given(trees(), trees(), st.data())
def test_two_trees_and_several_pods_of_each_link_find_nodes(
    first: tuple[list[int], list[int]], second: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    """SCH-555: no node takes targets of followers that then have none."""
    groups = []
    for prefix, (parents, order) in (("x", first), ("y", second)):
        counts = [data.draw(st.integers(1, 3)) for _ in order]
        groups += linked(parents, order, counts, prefix)
    result = plan(node_pool(), groups, types=TYPES)
    assert left(result) == []
    assert shares_hosts(result, first[0], "x")
    assert shares_hosts(result, second[0], "y")
