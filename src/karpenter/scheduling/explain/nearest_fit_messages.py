"""Sentences for near misses: what would have to be different for a pod to get a place, in words its owner understands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from karpenter.api.scheduling_constraints import Taint
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.texts import count_text
from karpenter.scheduling.failed_filters import (
    ConflictingRequirement,
    DevicesNotAllocatable,
    FailedFilter,
    HostPortTaken,
    InsufficientResource,
    MinValuesNotMet,
    NearestFit,
    NodePoolLimitReached,
    NoMatchingOffering,
    OfferingsUnavailable,
    RequirementOwner,
    ReservationsExhausted,
    StaticPoolFull,
    TopologyConfinement,
    TopologyUnsatisfiable,
    UndefinedLabel,
    UnknownResource,
    UnmetRequirement,
    UntoleratedTaint,
)

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SHOWN = 3
_IN_WORDS = {labels.ZONE: "zone", labels.HOSTNAME: "host", labels.CAPACITY_TYPE: "capacity type"}


def nearest_fit_sentence(nearest_fit: NearestFit | None, nearest_node: NearestFit | None = None) -> str:
    """The nearest miss, and the node that nearly has room, as one sentence; empty where neither is known."""
    return "; ".join(
        filter(
            None,
            (
                _nearest_fit_clause(nearest_fit) if nearest_fit else "",
                nearest_node_clause(nearest_node) if nearest_node else "",
            ),
        )
    )


def nearest_node_clause(fit: NearestFit) -> str:
    """Which node nearly has room: ``node n has 0.3 CPU too little``."""
    short = (
        f"{format_amount(o.resource, o.missing)} too little"
        for o in fit.failed_filters
        if isinstance(o, InsufficientResource)
    )
    return f"node {fit.node} has {_joined(list(short))}"


def _nearest_fit_clause(fit: NearestFit) -> str:
    unknown = [
        failed_filter.resource for failed_filter in fit.failed_filters if isinstance(failed_filter, UnknownResource)
    ]
    others = [failed_filter for failed_filter in fit.failed_filters if not isinstance(failed_filter, UnknownResource)]
    text = "; also, ".join(filter(None, (_unknown(fit, unknown), _others(fit, others))))
    return f"{_confinement_prefix(fit.confinements)}{text}"


def _unknown(fit: NearestFit, resources: Sequence[str]) -> str:
    if not resources:
        return ""
    noun = "resource" if len(resources) == 1 else "resources"
    return f"no instance type of NodePool {fit.node_pool} offers the {noun} {_joined(resources)}"


def _others(fit: NearestFit, obstacles: Sequence[FailedFilter]) -> str:
    if len(obstacles) == 1:
        return _single_change(fit, obstacles[0])
    if not obstacles:
        return ""
    what = f"type {fit.instance_type} of " if fit.instance_type else ""
    return f"nearest is {what}NodePool {fit.node_pool}, where {_joined([filter_clause(obstacle) for obstacle in obstacles])}"


def _single_change(fit: NearestFit, obstacle: FailedFilter) -> str:
    """The sentence where one change is enough."""
    pool = f"NodePool {fit.node_pool}"
    match obstacle:
        case TopologyUnsatisfiable():
            return _topology_clause(obstacle)
        case StaticPoolFull(replicas):
            return f"the pod fits only the static {pool}, which is full (spec.replicas {replicas})"
        case UntoleratedTaint(taint):
            return f"the pod would fit {pool} if it tolerated the taint {_taint(taint)}"
        case NodePoolLimitReached(resource, left, needed):
            by = format_amount(resource, needed - left)
            return f"the pod would fit {pool} if its limit of {resource} were {by} higher: {filter_clause(obstacle)}"
        case _:
            return f"nearest is {pool}: {filter_clause(obstacle)}"


def filter_clause(failed_filter: FailedFilter) -> str:
    """What is wrong, as a clause."""
    match failed_filter:
        case InsufficientResource() | UnknownResource() | NodePoolLimitReached() | MinValuesNotMet():
            return _amount_clause(failed_filter)
        case (
            UnmetRequirement()
            | ConflictingRequirement()
            | UndefinedLabel()
            | OfferingsUnavailable()
            | ReservationsExhausted()
            | NoMatchingOffering()
        ):
            return _choice_clause(failed_filter)
        case UntoleratedTaint(taint):
            return f"the pod does not tolerate the taint {_taint(taint)}"
        case HostPortTaken(port, _, daemon_set):
            return f"host port {port.port}/{port.protocol} is taken by DaemonSet {daemon_set} on every node"
        case DevicesNotAllocatable(device_classes):
            return f"its devices cannot meet the claims for {', '.join(device_classes)} together"
        case StaticPoolFull(replicas):
            return f"its nodes are full (spec.replicas {replicas})"
        case TopologyUnsatisfiable():
            return _topology_clause(failed_filter)


def _amount_clause(obstacle: InsufficientResource | UnknownResource | NodePoolLimitReached | MinValuesNotMet) -> str:
    match obstacle:
        case UnknownResource(resource):
            return f"no instance type offers the resource {resource}"
        case NodePoolLimitReached(resource, left, needed):
            return f"a node needs {format_amount(resource, needed)}, the limit leaves {format_amount(resource, max(0, left))}"
        case MinValuesNotMet(key, wanted, there):
            return f"minValues asks for {count_text(wanted, 'value')} of {key}, and {there} {'is' if there == 1 else 'are'} left"
        case InsufficientResource(resource, _, there, where):
            return (
                f"the pod is {format_amount(resource, obstacle.missing)} short on {where}, the largest otherwise suitable type"
                f" ({_asked_clause(obstacle)}, {format_amount(resource, there)} there)"
            )


def _asked_clause(obstacle: InsufficientResource) -> str:
    """``asks 268 GiB of memory, 0.5 GiB of that for DaemonSets``."""
    taken = format_amount(obstacle.resource, obstacle.daemonset_requests)
    return f"asks {format_amount(obstacle.resource, obstacle.asked)}" + (
        f", {taken} of that for DaemonSets" if obstacle.daemonset_requests else ""
    )


def _choice_clause(
    obstacle: UnmetRequirement
    | ConflictingRequirement
    | UndefinedLabel
    | OfferingsUnavailable
    | ReservationsExhausted
    | NoMatchingOffering,
) -> str:
    match obstacle:
        case UnmetRequirement(asked, side, offered, count):
            who = "the pod" if side is RequirementOwner.POD else "the NodePool"
            instead = f" (there {'are' if len(offered) > 1 else 'is'} {_some(offered, count)})" if offered else ""
            return f"no otherwise suitable type has {asked}, which {who} requires{instead}"
        case ConflictingRequirement(asked, offered):
            return f"the pod requires {asked}, the NodePool has {offered}"
        case UndefinedLabel(asked, meant):
            hint = f' (typo of "{meant}"?)' if meant else ""
            return f"the pod requires {asked}, a label the NodePool does not define{hint}"
        case OfferingsUnavailable(zones, capacity_types):
            return f"all matching offerings are unavailable{_where(zones, capacity_types)}"
        case ReservationsExhausted():
            return f"all matching offerings are reserved capacity, and {_exhausted_clause(obstacle)}"
        case NoMatchingOffering(keys):
            asked_of = f" with one offering that meets the requirements on {_joined(keys)}" if keys else ""
            return f"no otherwise suitable type is sold{asked_of}"


def filter_noun(failed_filter: FailedFilter) -> str:
    """What types fall to, as a noun."""
    match failed_filter:
        case UntoleratedTaint(taint):
            return f"the taint {taints.taint_text(taint)}, which the pod does not tolerate"
        case UnknownResource(resource):
            return f"the resource {resource}, which none offers"
        case InsufficientResource(resource, _, 0, _):
            return f"the resource {resource}, of which they have none"
        case InsufficientResource(resource, _, there, where):
            largest = f"the largest of them, {where}, has {format_amount(resource, there)}"
            return f"{resource}: the pod {_asked_clause(failed_filter)} ({largest})"
        case NodePoolLimitReached(resource, left, needed):
            least = f"even the smallest needs {format_amount(resource, needed)}"
            return f"the limit of {resource}, which leaves {format_amount(resource, max(0, left))} where {least}"
        case UnmetRequirement(asked, side):
            return f"the {'pod' if side is RequirementOwner.POD else 'NodePool'}'s requirement {asked}"
        case OfferingsUnavailable() | ReservationsExhausted() | NoMatchingOffering():
            return _offerings_noun(failed_filter)
        case HostPortTaken(port, _, daemon_set):
            return f"host port {port.port}/{port.protocol}, taken by DaemonSet {daemon_set}"
        case _:
            return f"this: {filter_clause(failed_filter)}"


def _offerings_noun(failed_filter: OfferingsUnavailable | ReservationsExhausted | NoMatchingOffering) -> str:
    match failed_filter:
        case OfferingsUnavailable(zones, capacity_types):
            return f"being unavailable{_where(zones, capacity_types)}"
        case ReservationsExhausted():
            return f"being reserved capacity: {_exhausted_clause(failed_filter)}"
        case NoMatchingOffering(keys):
            return "having no offering" + (f" that meets the requirements on {_joined(keys)}" if keys else "")


def filter_subject(failed_filter: FailedFilter) -> str:
    """What it is about: a resource, a label, a taint, a requirement, a port; empty where it is about no single one."""
    match failed_filter:
        case UnknownResource(resource) | InsufficientResource(resource) | NodePoolLimitReached(resource):
            return resource
        case UnmetRequirement(asked) | ConflictingRequirement(asked) | UndefinedLabel(asked):
            return str(asked)
        case TopologyUnsatisfiable(key=key) | MinValuesNotMet(key):
            return key
        case UntoleratedTaint(taint):
            return _taint(taint)
        case HostPortTaken(port):
            return str(port.port)
        case DevicesNotAllocatable(device_classes):
            return ", ".join(device_classes)
        case StaticPoolFull(replicas):
            return str(replicas)
        case OfferingsUnavailable() | ReservationsExhausted() | NoMatchingOffering():
            return ""


def _exhausted_clause(obstacle: ReservationsExhausted) -> str:
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


def _confinement_prefix(constraints: Sequence[TopologyConfinement]) -> str:
    """``topology spread by zone allows only zone-c next: ``."""
    texts = [
        f"{confinement.relation} by {confinement.key} allows only {confinement.domain} next"
        for confinement in constraints
    ]
    return f"{_joined(texts)}: " if texts else ""


def _topology_clause(obstacle: TopologyUnsatisfiable) -> str:
    noun = _IN_WORDS.get(obstacle.key, "domain")
    listed = _some([f"{domain} ({number})" for domain, number in obstacle.domain_counts.items()])
    whose = "the pod's" if obstacle.is_own_constraint else "other pods'"
    holding = "such pods are" if obstacle.is_own_constraint else "pods that keep it away are"
    there = f"{holding} in {listed}" if listed else "there are no such pods"
    leaves = (
        f"allows only {_some(obstacle.unserved_domains)}, where no NodePool may launch nodes"
        if obstacle.unserved_domains
        else f"leaves no {noun}"
    )
    relation = obstacle.relation.removeprefix("pod ")
    return f"{whose} {relation} by {obstacle.key} {leaves}: {there}"


def _taint(taint: Taint) -> str:
    return taints.taint_text(taint)


def format_amount(resource: str, milli: int) -> str:
    """An amount as people say it: ``0.3 CPU``, ``12 GiB of memory``, ``2 nvidia.com/gpu``."""
    if resource == res.CPU:
        return f"{_number(milli)} CPU"
    if resource in (res.MEMORY, res.EPHEMERAL_STORAGE) or resource.startswith("hugepages-"):
        size, unit = next(((s, u) for s, u in _UNITS if milli >= s * res.ONE_UNIT), (1, "bytes"))
        return f"{_number(milli / size)} {unit} of {resource}"
    noun = resource.removesuffix("s") if resource in (res.NODES, res.PODS) and milli == res.ONE_UNIT else resource
    return f"{_number(milli)} {noun}"


def _number(milli: float) -> str:
    return (
        f"{milli / res.ONE_UNIT:.3f}".rstrip("0").rstrip(".") if milli % res.ONE_UNIT else f"{milli / res.ONE_UNIT:.0f}"
    )


def _some(names: Iterable[str], count: int = 0) -> str:
    """The first few names and how many more there are; ``count``: of all, where more than these."""
    listed = list(names)
    rest = max(count, len(listed)) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _joined(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
