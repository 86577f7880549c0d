"""A classic claim ends when it is full, whatever takes its room, and asks for types no more often than pods join it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model.resources import Resources
from karpenter.scheduling.node_filling import FillCache
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.scheduling_options import PackingMode, SchedulingOptions
from support.builders import daemon_set, node_pool, plan, pod
from support.instance_types import inc

_POD_COUNT = 60


def _different_pods() -> list[object]:
    return [pod(f"p{n}", {"cpu": f"{10 + n}m", "memory": f"{10 + n}Mi"}) for n in range(_POD_COUNT)]


def test_a_claim_that_daemon_sets_fill_up_is_not_offered_further_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has room for ten pods, two of them of DaemonSets: eight claims, and no look at types for pods beyond the eighth."""
    asked: list[Resources] = []
    holding = FillCache.types_holding

    def counted(
        cache: FillCache,
        template: NodePoolTemplate,
        requests: Resources,
        contents: Iterable[tuple[int, int]],
        within: TypeSet = -1,
    ) -> TypeSet:
        asked.append(requests)
        return holding(cache, template, requests, contents, within)

    monkeypatch.setattr(FillCache, "types_holding", counted)
    daemons = [daemon_set(name, {"cpu": "10m"}) for name in ("logs", "metrics")]
    options = SchedulingOptions(packing_mode=PackingMode.CLASSIC)
    solution = plan(node_pool(), *daemons, *_different_pods(), types=inc(1), options=options)
    assert sorted(len(claim.pods) for claim in solution.new_claims) == [4, *[8] * 7]
    assert not solution.unschedulable
    assert len(asked) == _POD_COUNT


def test_what_a_type_leaves_to_pods_is_the_most_beside_the_daemon_sets_of_its_own() -> None:
    """DaemonSets that run on large nodes only take nothing from small ones."""
    large = daemon_set("large", {"cpu": "3"}, node_selector={"node.kubernetes.io/instance-type": "t3"})
    options = SchedulingOptions(packing_mode=PackingMode.CLASSIC)
    solution = plan(node_pool(), large, pod("p", {"cpu": "2500m"}), types=inc(4), options=options)
    (claim,) = solution.new_claims
    assert claim.instance_types == ("t2",)
