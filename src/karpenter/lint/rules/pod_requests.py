"""Rules about what pods ask for: requests, nodes that hold them, nodes by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Container, Node
from karpenter.api.limit_range import LimitRange
from karpenter.lint.lint_input import LintInput, PodSource
from karpenter.lint.pod_fit import Obstacle, PodFit, pod_fits
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.model import labels
from karpenter.model.quantity import parse_milli
from karpenter.model.structural_schema import child_path
from karpenter.state.pod_signature import required_node_affinity_terms

_NEEDED = ("cpu", "memory")
_SHOWN = 3


def _no_requests(lint_input: LintInput) -> Iterator[Match]:
    with_defaults = {limit_range.metadata.namespace or "default" for _, limit_range in lint_input.of_type(LimitRange)}
    for pod in lint_input.pod_specs():
        if pod.where.namespace in with_defaults or pod.spec.resources is not None:
            continue
        for index, container in enumerate(pod.spec.containers):
            missing = [name for name in _NEEDED if name not in _requested(container)]
            if missing:
                text = f"requests no {' and no '.join(missing)}: nodes are planned as if it needed none"
                yield Match(pod.where, f"{pod.path}.containers[{index}]", text)


def _requested(container: Container) -> frozenset[str]:
    """A limit counts as request where there is none."""
    return frozenset((*container.resources.requests, *container.resources.limits))


def _memory_overcommitted(lint_input: LintInput) -> Iterator[Match]:
    for pod in lint_input.pod_specs():
        for index, container in enumerate(pod.spec.containers):
            request, limit = (
                amounts.get("memory") for amounts in (container.resources.requests, container.resources.limits)
            )
            if request is not None and limit is not None and parse_milli(limit) > parse_milli(request):
                text = (
                    f"may use {limit} of memory and requests {request}: nodes are packed by requests, and pods are killed when "
                    "several use more"
                )
                yield Match(pod.where, f"{pod.path}.containers[{index}].resources.limits.memory", text)


def _never_fits(lint_input: LintInput) -> Iterator[Match]:
    """Pods that no NodePool of the input launches a node for. Where Nodes are given, they may be meant for those."""
    if any(lint_input.of_type(Node)):
        return
    for pod in lint_input.pod_specs():
        fits = [] if isinstance(pod.carrier, DaemonSet) else list(pod_fits(pod, lint_input))
        blocked = [fit for fit in fits if fit.obstacle is not None]
        if fits and len(blocked) == len(fits) and not any(fit.obstacle is Obstacle.HOST_PORTS for fit in blocked):
            yield Match(pod.where, pod.path, f"fits no NodePool: {_obstacles_text(blocked)}")


def _obstacles_text(fits: Sequence[PodFit]) -> str:
    """What is in the way, each with the NodePools it is true of."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for fit in fits:
        names[str(fit.obstacle)].append(fit.offer.pool.metadata.name)
    return "; ".join(f"{obstacle} ({_names_text(pools)})" for obstacle, pools in names.items())


def _names_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _host_port_taken(lint_input: LintInput) -> Iterator[Match]:
    for pod in lint_input.pod_specs():
        fits = [] if isinstance(pod.carrier, DaemonSet) else list(pod_fits(pod, lint_input))
        blocked = [fit for fit in fits if fit.obstacle is not None]
        if blocked and len(blocked) == len(fits) and any(fit.obstacle is Obstacle.HOST_PORTS for fit in blocked):
            text = f"a DaemonSet takes its host port on every node it could have: {_obstacles_text(blocked)}"
            yield Match(pod.where, pod.path, text)


def _pinned(lint_input: LintInput) -> Iterator[Match]:
    for pod in lint_input.pod_specs():
        path = _pin_path(pod)
        if path:
            yield Match(
                pod.where, path, "names one node: no node is launched for such a pod, and when the node goes, it waits"
            )


def _pin_path(pod: PodSource) -> str:
    """Where a pod names its node; empty where it names none. A pod that has been placed names it, too."""
    if labels.HOSTNAME in pod.spec.node_selector:
        return child_path(f"{pod.path}.nodeSelector", labels.HOSTNAME)
    terms = required_node_affinity_terms(pod.spec.affinity)
    if any(term.match_fields for term in terms) or any(
        expression.key == labels.HOSTNAME and expression.operator == "In"
        for term in terms
        for expression in term.match_expressions
    ):
        return f"{pod.path}.affinity.nodeAffinity"
    is_written_by_hand = pod.spec.node_name and not pod.metadata.resource_version and not pod.metadata.owner_references
    return f"{pod.path}.nodeName" if is_written_by_hand else ""


RULES = (
    Rule(
        "KL401",
        "requests-missing",
        Severity.WARNING,
        Topic.WORKLOADS,
        "A container without a request for CPU or memory. Namespaces with a LimitRange in the input are left out.",
        "Nodes are planned by requests: the pods share what was launched for others, and are evicted first.",
        "Write requests for both, or a LimitRange with defaults.",
        _no_requests,
    ),
    Rule(
        "KL402",
        "pod-never-fits",
        Severity.ERROR,
        Topic.WORKLOADS,
        "A pod for which no NodePool of the input can launch a node.",
        "It stays pending.",
        "See what is in the way for each NodePool in the finding; `karpenter explain` says more.",
        _never_fits,
    ),
    Rule(
        "KL403",
        "memory-limit-above-request",
        Severity.NOTE,
        Topic.WORKLOADS,
        "A container whose memory limit is above its request.",
        "Consolidation packs nodes by requests. Containers that use more are killed when the node runs out of memory.",
        "Write the same amount for both.",
        _memory_overcommitted,
    ),
    Rule(
        "KL404",
        "pinned-to-node",
        Severity.WARNING,
        Topic.WORKLOADS,
        "A pod that names its node.",
        "Nodes get new names whenever they are replaced, and nothing launches one of a given name.",
        "Select labels of a NodePool instead.",
        _pinned,
    ),
    Rule(
        "KL405",
        "host-port-taken",
        Severity.ERROR,
        Topic.WORKLOADS,
        "A pod whose host port a DaemonSet takes on every node it could run on.",
        "It stays pending, on new nodes, too.",
        "Use another port, or a Service instead of a host port.",
        _host_port_taken,
    ),
)
