"""Inputs that grow one thing alone, and inputs made to be hard: what `growth` decides on."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.api.core import Pod
from karpenter.api.meta import LabelSelector, Wire
from karpenter.api.scheduling_constraints import (
    Affinity,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from karpenter.model import labels
from support.builders import daemon_set, node_pool, pod, wanted

RACK = "example.com/rack"


def all_different(count: int) -> list[Wire]:
    """Pods no two of which request the same."""
    return [pod(f"p{n}", {"cpu": f"{100 + n}m", "memory": f"{256 + n * 7 % 4096}Mi"}) for n in range(count)]


def alike(count: int) -> list[Wire]:
    """Pods that form twenty pod groups."""
    return [pod(f"p{n}", {"cpu": f"{100 + n % 20 * 70}m", "memory": f"{256 + n % 20 * 200}Mi"}) for n in range(count)]


def spread_groups(count: int) -> list[Wire]:
    """Pods each of which spreads over zones by a selector of its own."""
    return [_spread(n, f"app{n}", labels.ZONE) for n in range(count)]


def many_labels(count: int) -> list[Wire]:
    """A thousand pods with so many labels each."""
    own = {f"label-{n}": "x" for n in range(count)}
    return [pod(f"p{n}", _requests(n), meta={"labels": {**own, "app": f"a{n % 50}"}}) for n in range(1000)]


def apart_from_all(count: int) -> list[Wire]:
    """Pods none of which shares a host with any other."""
    term = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"all": "yes"}))
    apart = Affinity(pod_anti_affinity=PodAffinity(required=(term,)))
    return [pod(f"p{n}", _requests(n), meta={"labels": {"all": "yes"}}, affinity=apart) for n in range(count)]


def domain_combinations(racks: int) -> list[Wire]:
    """Thirty groups spread over zones, capacity types and so many racks: three times two times as many combinations."""
    keys = (labels.ZONE, labels.CAPACITY_TYPE, RACK)
    return [_spread(n, f"app{n % 30}", *keys) for n in range(600)]


def racks_pool(racks: int) -> Wire:
    """A NodePool whose nodes may be in so many racks."""
    return node_pool(requirements=[wanted(RACK, "In", *(f"r{n}" for n in range(racks)))])


def pools(count: int) -> list[Wire]:
    """So many NodePools with a label of their own."""
    return [node_pool(f"pool{n:03}", labels={"example.com/team": f"t{n}"}) for n in range(count)]


def daemon_sets(count: int) -> list[Wire]:
    """DaemonSets, each for nodes of one of three zones."""
    return list(_daemon_sets(count))


def _daemon_sets(count: int) -> Iterator[Wire]:
    for n in range(count):
        zone = f"test-zone-{1 + n % 3}"
        yield daemon_set(f"d{n}", {"memory": "1Ki"}, node_selector={labels.ZONE: zone})


def _spread(number: int, app: str, *keys: str) -> Pod:
    own = LabelSelector(match_labels={"app": app})
    constraints = tuple(
        TopologySpreadConstraint(max_skew=1, topology_key=key, when_unsatisfiable="DoNotSchedule", label_selector=own)
        for key in keys
    )
    return pod(f"p{number}", _requests(number), meta={"labels": {"app": app}}, topology_spread_constraints=constraints)


def _requests(number: int) -> dict[str, str]:
    return {"cpu": f"{100 + number % 20 * 70}m", "memory": f"{256 + number % 20 * 200}Mi"}
