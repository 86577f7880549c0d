"""The same cluster gives the same plan, in whatever order its objects arrive and whichever process decides."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.model import labels
from karpenter.scheduling.solution import Solution
from support import mixed_clusters
from support.builders import claim, node_and_claim, node_pool, plan, pod, pods, replaced, wanted, where
from support.examples import examples
from support.instance_types import inc
from support.plan_checker_cluster import ClusterObjects
from support.related_pod_clusters import Cluster, clusters

TESTS = Path(__file__).resolve().parents[1]


def digest(result: Solution) -> str:
    """The whole plan as one hash; the repr of frozen values has all their fields."""
    parts = [
        *(
            (new_nodeclaim.name, new_nodeclaim.claim, new_nodeclaim.instance_types, new_nodeclaim.pods)
            for new_nodeclaim in result.new_claims
        ),
        *((placed_pods.node_key, placed_pods.pods) for placed_pods in result.placed_on_existing),
        *((unschedulable_pod.pod, unschedulable_pod.reasons) for unschedulable_pod in result.unschedulable),
        result.skipped_pools,
        result.packing_heuristic,
    ]
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()


def busy_cluster() -> list[object]:
    """Something of everything that is ordered: equal pods, equal prices, several pools, nodes and open labels."""
    return [
        node_pool(
            "a", [wanted("team", "Exists"), wanted(labels.INSTANCE_TYPE, "Exists", least=2)], limits={"cpu": "40"}
        ),
        node_pool("b", labels={"team": "b", "floor": "1"}),
        node_and_claim("n1", {"cpu": "4"}),
        node_and_claim("n2", {"cpu": "4"}),
        claim("c1", None, [wanted(labels.INSTANCE_TYPE, "In", "t2", "t3")], pool="a"),
        pods(30, {"cpu": "700m"}, prefix="plain"),
        pods(10, {"cpu": "700m", "memory": "3Gi"}, prefix="large", affinity=where(labels.ZONE, "In", "z1", "z2")),
        pods(5, {"cpu": "1"}, prefix="team", affinity=where("team", "In", "x", "y", "b")),
        pod("lost", node_selector={"team": "nobody"}),
        pod("stuck", {"cpu": "99"}),
    ]


def test_the_plan_does_not_depend_on_hash_seeds() -> None:
    """Two processes with different PYTHONHASHSEED plan alike, byte for byte."""
    code = (
        "from properties_plan_digest import digest, busy_cluster; from support.builders import plan;"
        "from support.instance_types import inc; print(digest(plan(busy_cluster(), types=inc(8))))"
    )
    code = code.replace("properties_plan_digest", "properties.test_plan_determinism")
    path = os.pathsep.join([str(TESTS), *sys.path])
    actual = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert actual == {digest(plan(busy_cluster(), types=inc(8)))}


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(mixed_clusters.clusters(), st.integers(0, 2**32))
def test_the_plan_does_not_depend_on_the_order_of_anything(cluster: ClusterObjects, seed: int) -> None:
    """SCH-862: ties are broken by rule, never by arrival. SCH-861."""
    objects, types = list(cluster.objects()), list(cluster.types)
    first = digest(plan(objects, types=types))
    Random(seed).shuffle(objects)
    Random(seed).shuffle(types)
    assert digest(plan(objects, types=types)) == first


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(clusters(), st.integers(0, 2**32))
def test_nor_does_it_where_pods_depend_on_each_other(cluster: Cluster, seed: int) -> None:
    """SCH-862: planned twice, or in another order of its objects, the same cluster gives the same plan with the same reasons."""
    objects, types = cluster.objects(), list(cluster.types)
    first = digest(plan(objects, types=types))
    assert digest(plan(objects, types=types)) == first
    Random(seed).shuffle(objects)
    Random(seed).shuffle(types)
    assert digest(plan(objects, types=types)) == first


def test_the_plan_does_not_depend_on_the_order_of_pods() -> None:
    objects = busy_cluster()
    first = digest(plan(objects, types=inc(8)))
    shuffled = [
        Random(7).sample(element, len(element)) if isinstance(element, list) else element for element in objects
    ]
    assert digest(plan(shuffled[::-1], types=inc(8)[::-1])) == first


# -- derived names --------------------------------------------------------------------------------------------------------


def test_a_claim_has_the_same_name_every_time_it_is_planned() -> None:
    """SCH-620 as settled: creating it again finds it there."""
    names = [new_nodeclaim.name for new_nodeclaim in plan(busy_cluster(), types=inc(8)).new_claims]
    assert names == [new_nodeclaim.name for new_nodeclaim in plan(busy_cluster(), types=inc(8)).new_claims]
    assert len(set(names)) == len(names) > 3
    assert all(name.startswith(("a-", "b-")) for name in names)


def test_other_pods_make_another_name() -> None:
    first, second = plan(node_pool(), pod("p")), plan(node_pool(), pod("q"))
    assert first.new_claims[0].name != second.new_claims[0].name


def test_a_claim_is_never_named_like_one_that_exists() -> None:
    """One that leaves must not be taken for the new one, and one that proved too small must not stop the second try."""
    waiting = pod("p", {"cpu": "1"})
    first = plan(node_pool(), waiting).new_claims[0].claim
    leaving = replaced(first, metadata=replaced(first.metadata, deletion_timestamp=waiting.metadata.creation_timestamp))
    assert plan(node_pool(), waiting, leaving).new_claims[0].name != first.metadata.name
    there, behind = node_and_claim("n", {"cpu": "100m"})
    too_small = replaced(behind, metadata=replaced(behind.metadata, name=first.metadata.name))
    again = plan(node_pool(), waiting, there, too_small)
    assert again.new_claims[0].name != first.metadata.name
    assert again.new_claims[0].name == plan(node_pool(), waiting, there, too_small).new_claims[0].name


def test_a_name_fits_into_a_label_whatever_the_pool_is_called() -> None:
    """API-031"""
    long = "pool-" + "x" * 46 + "." + "y" * 11
    name = plan(node_pool(long), pod("p")).new_claims[0].name
    assert len(name) <= 63
    assert "." not in name[-12:]
