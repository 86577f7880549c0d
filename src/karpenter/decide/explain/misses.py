"""Sentences for near misses: what would have to be different for a pod to get a place, in words its owner understands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from karpenter.api.core import Taint
from karpenter.decide.obstacles import (
    Blocked,
    Clashing,
    Confined,
    LimitReached,
    Miss,
    Obstacle,
    PortTaken,
    Short,
    Side,
    SoldOut,
    StaticFull,
    Tainted,
    TooFewValues,
    Unknown,
    Unlabelled,
    Unmatched,
    Unoffered,
    UsedUp,
)
from karpenter.model import labels, taints
from karpenter.model import resources as res

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SHOWN = 3
_IN_WORDS = {labels.ZONE: "zone", labels.HOSTNAME: "host", labels.CAPACITY_TYPE: "capacity type"}


def sentence(nearest: Miss | None, beside: Miss | None = None) -> str:
    """The nearest miss, and the machine that nearly has room, as one sentence; empty where neither is known."""
    return "; ".join(filter(None, (_main(nearest) if nearest else "", near_machine(beside) if beside else "")))


def near_machine(miss: Miss) -> str:
    """Which machine nearly has room: ``node n has 0.3 CPU too little``."""
    short = (f"{amount(o.resource, o.short)} too little" for o in miss.obstacles if isinstance(o, Short))
    return f"node {miss.node} has {_joined(list(short))}"


def _main(miss: Miss) -> str:
    unknown = [item.resource for item in miss.obstacles if isinstance(item, Unknown)]
    others = [item for item in miss.obstacles if not isinstance(item, Unknown)]
    text = "; besides, ".join(filter(None, (_unknown(miss, unknown), _others(miss, others))))
    return f"{_confined(miss.confined)}{text}"


def _unknown(miss: Miss, resources: Sequence[str]) -> str:
    if not resources:
        return ""
    noun = "resource" if len(resources) == 1 else "resources"
    return f"no instance type of NodePool {miss.node_pool} offers the {noun} {_joined(resources)}"


def _others(miss: Miss, obstacles: Sequence[Obstacle]) -> str:
    if len(obstacles) == 1:
        return _alone(miss, obstacles[0])
    if not obstacles:
        return ""
    what = f"type {miss.instance_type} of " if miss.instance_type else ""
    return f"nearest is {what}NodePool {miss.node_pool}, where {_joined([fault(item) for item in obstacles])}"


def _alone(miss: Miss, obstacle: Obstacle) -> str:
    """The sentence where one change is enough."""
    pool = f"NodePool {miss.node_pool}"
    match obstacle:
        case Blocked():
            return _blocked(obstacle)
        case StaticFull(replicas):
            return f"the pod fits only the static {pool}, which is full (spec.replicas {replicas})"
        case Tainted(taint):
            return f"the pod would fit {pool} if it tolerated the taint {_taint(taint)}"
        case LimitReached(resource, left, needed):
            by = amount(resource, needed - left)
            return f"the pod would fit {pool} if its limit of {resource} were {by} higher: {fault(obstacle)}"
        case _:
            return f"nearest is {pool}: {fault(obstacle)}"


def fault(obstacle: Obstacle) -> str:
    """What is wrong, as a clause."""
    match obstacle:
        case Short() | Unknown() | LimitReached() | TooFewValues():
            return _amount_fault(obstacle)
        case Unmatched() | Clashing() | Unlabelled() | SoldOut() | UsedUp() | Unoffered():
            return _choice_fault(obstacle)
        case Tainted(taint):
            return f"the pod does not tolerate the taint {_taint(taint)}"
        case PortTaken(port, protocol, daemon_set):
            return f"host port {port}/{protocol} is taken by DaemonSet {daemon_set} on every machine"
        case StaticFull(replicas):
            return f"the machines it has are full (spec.replicas {replicas})"
        case Blocked():
            return _blocked(obstacle)


def _amount_fault(obstacle: Short | Unknown | LimitReached | TooFewValues) -> str:
    match obstacle:
        case Unknown(resource):
            return f"no instance type offers the resource {resource}"
        case LimitReached(resource, left, needed):
            return f"a machine needs {amount(resource, needed)}, the limit leaves {amount(resource, max(0, left))}"
        case TooFewValues(key, wanted, there):
            return f"minValues asks for {wanted} values of {key}, and {there} are left"
        case Short(resource, _, there, where):
            return (
                f"the pod is {amount(resource, obstacle.short)} short on {where}, the largest type that suits otherwise"
                f" ({_asked(obstacle)}, {amount(resource, there)} there)"
            )


def _asked(obstacle: Short) -> str:
    """``asks 268 GiB of memory, 0.5 GiB of that for DaemonSets``."""
    taken = amount(obstacle.resource, obstacle.daemons)
    return f"asks {amount(obstacle.resource, obstacle.asked)}" + (
        f", {taken} of that for DaemonSets" if obstacle.daemons else ""
    )


def _choice_fault(obstacle: Unmatched | Clashing | Unlabelled | SoldOut | UsedUp | Unoffered) -> str:
    match obstacle:
        case Unmatched(asked, side, offered):
            who = "the pod" if side is Side.POD else "the NodePool"
            instead = f" (there are {_some(offered)})" if offered else ""
            return f"no type that suits otherwise has {asked}, which {who} requires{instead}"
        case Clashing(asked, offered):
            return f"the pod requires {asked}, the NodePool has {offered}"
        case Unlabelled(asked, meant):
            hint = f' (typo of "{meant}"?)' if meant else ""
            return f"the pod requires {asked}, a label the NodePool does not define{hint}"
        case SoldOut(zones, capacity_types):
            return f"all that suits is sold out{_where(zones, capacity_types)}"
        case UsedUp():
            return f"all that suits is reserved capacity, and {_used_up(obstacle)}"
        case Unoffered(keys):
            asked_of = f" in a way that meets all that is asked of {_joined(keys)}" if keys else ""
            return f"no type that suits otherwise is sold{asked_of}"


def hurdle(obstacle: Obstacle) -> str:
    """What types fall to, as a noun."""
    match obstacle:
        case Tainted(taint):
            return f"the taint {taints.text(taint)}, which the pod does not tolerate"
        case Unknown(resource):
            return f"the resource {resource}, which none offers"
        case Short(resource, _, 0, _):
            return f"the resource {resource}, of which they have none"
        case Short(resource, _, there, where):
            return (
                f"{resource}: the pod {_asked(obstacle)} (the largest of them, {where}, has {amount(resource, there)})"
            )
        case LimitReached(resource, left, needed):
            least = f"even the smallest needs {amount(resource, needed)}"
            return f"the limit of {resource}, which leaves {amount(resource, max(0, left))} where {least}"
        case Unmatched(asked, side):
            return f"the {'pod' if side is Side.POD else 'NodePool'}'s requirement {asked}"
        case SoldOut(zones, capacity_types):
            return f"being sold out{_where(zones, capacity_types)}"
        case UsedUp():
            return f"being reserved capacity: {_used_up(obstacle)}"
        case PortTaken(port, protocol, daemon_set):
            return f"host port {port}/{protocol}, taken by DaemonSet {daemon_set}"
        case _:
            return f"this: {fault(obstacle)}"


def _used_up(obstacle: UsedUp) -> str:
    """``the reservation cr-1 is used up``."""
    named = [reservation for reservation in obstacle.reservations if reservation]
    if not named:
        return "it is used up"
    return (
        f"the reservation {named[0]} is used up" if len(named) == 1 else f"the reservations {_some(named)} are used up"
    )


def _where(zones: Sequence[str], capacity_types: Sequence[str]) -> str:
    parts = (f" in {_some(zones)}" if zones else "", f" as {_some(capacity_types)}" if capacity_types else "")
    return "".join(parts)


def _confined(constraints: Sequence[Confined]) -> str:
    """``topology spread by zone allows only zone-c next: ``."""
    texts = [f"{item.relation} by {item.key} allows only {item.domain} next" for item in constraints]
    return f"{_joined(texts)}: " if texts else ""


def _blocked(obstacle: Blocked) -> str:
    noun = _IN_WORDS.get(obstacle.key, "domain")
    listed = _some([f"{domain} ({number})" for domain, number in obstacle.counts.items()])
    whose = "the pod's" if obstacle.own else "other pods'"
    holding = "such pods are" if obstacle.own else "pods that keep it away are"
    there = f"{holding} in {listed}" if listed else f"{holding} nowhere"
    leaves = (
        f"allows only {_some(obstacle.unserved)}, where no NodePool may have machines"
        if obstacle.unserved
        else f"leaves no {noun}"
    )
    return f"{whose} {obstacle.relation} by {obstacle.key} {leaves}: {there}"


def _taint(taint: Taint) -> str:
    return taints.text(taint)


def amount(resource: str, milli: int) -> str:
    """An amount as people say it: ``0.3 CPU``, ``12 GiB of memory``, ``2 nvidia.com/gpu``."""
    if resource == res.CPU:
        return f"{_number(milli)} CPU"
    if resource in (res.MEMORY, res.EPHEMERAL_STORAGE) or resource.startswith("hugepages-"):
        size, unit = next(((s, u) for s, u in _UNITS if milli >= s * res.ONE), (1, "bytes"))
        return f"{_number(milli / size)} {unit} of {resource}"
    noun = resource.removesuffix("s") if resource in (res.NODES, res.PODS) and milli == res.ONE else resource
    return f"{_number(milli)} {noun}"


def _number(milli: float) -> str:
    return f"{milli / res.ONE:.3f}".rstrip("0").rstrip(".") if milli % res.ONE else f"{milli / res.ONE:.0f}"


def _some(names: Iterable[str]) -> str:
    found = list(names)
    rest = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _joined(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
