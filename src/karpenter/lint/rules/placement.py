"""Rules about constraints between pods: those that need a new node for each pod, and those that cannot be met."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.api.apps import DaemonSet
from karpenter.api.autoscaling import HorizontalPodAutoscaler
from karpenter.api.scheduling_constraints import PodAffinityTerm, TopologySpreadConstraint
from karpenter.lint.lint_input import LintInput, PodSource
from karpenter.lint.pod_fit import accepted_requirements, pod_fits
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.model import labels
from karpenter.model.selectors import selector_matches
from karpenter.model.texts import count_text
from karpenter.state.host_ports import host_ports_of

#: Up to so many replicas on nodes of their own are what people do for availability.
_FEW_REPLICAS = 3
_HARD = "DoNotSchedule"


def _replicas(pod: PodSource, lint_input: LintInput) -> int:
    """How many pods there may be: an autoscaler's most counts."""
    for where, autoscaler in lint_input.of_type(HorizontalPodAutoscaler):
        target = autoscaler.spec.scale_target_ref
        is_same = (target.kind, target.name) == (pod.where.kind, pod.carrier.metadata.name)
        if is_same and where.namespace == pod.where.namespace:
            return autoscaler.spec.max_replicas
    return pod.replicas


def _own_anti_affinity(pod: PodSource) -> Iterator[tuple[int, PodAffinityTerm]]:
    """Required anti-affinity terms that keep pods of the workload apart from each other."""
    affinity = pod.spec.affinity
    terms = (
        affinity.pod_anti_affinity.required if affinity is not None and affinity.pod_anti_affinity is not None else ()
    )
    for index, term in enumerate(terms):
        if term.label_selector is not None and selector_matches(term.label_selector, pod.metadata.labels):
            yield index, term


def _anti_affinity_path(pod: PodSource, index: int) -> str:
    return f"{pod.path}.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[{index}]"


def _node_per_replica(lint_input: LintInput) -> Iterator[Match]:
    for pod in _replicated(lint_input):
        replicas = _replicas(pod, lint_input)
        for index, term in _own_anti_affinity(pod):
            if term.topology_key == labels.HOSTNAME and replicas > _FEW_REPLICAS:
                text = f"{replicas} replicas need {replicas} nodes; spread them (topologySpreadConstraints) with a larger maxSkew"
                yield Match(pod.where, _anti_affinity_path(pod, index), text)


def _more_replicas_than_zones(lint_input: LintInput) -> Iterator[Match]:
    for pod in _replicated(lint_input):
        indexes = [index for index, term in _own_anti_affinity(pod) if term.topology_key == labels.ZONE]
        zones = _zones(pod, lint_input) if indexes else []
        replicas = _replicas(pod, lint_input)
        if zones and replicas > len(zones):
            text = f"{replicas} replicas, one in each zone, and {count_text(len(zones), 'zone')} for them ({', '.join(zones)})"
            yield from (Match(pod.where, _anti_affinity_path(pod, index), text) for index in indexes)


def _too_many_domains(lint_input: LintInput) -> Iterator[Match]:
    for pod in lint_input.pod_specs():
        wanted = {
            index: constraint.min_domains
            for index, constraint in _hard_spreads(pod)
            if constraint.topology_key == labels.ZONE and constraint.min_domains is not None
        }
        zones = _zones(pod, lint_input) if wanted else []
        for index, domains in wanted.items():
            if zones and domains > len(zones):
                there = f"{count_text(len(zones), 'zone')} ({', '.join(zones)})"
                text = f"minDomains {domains} cannot be met: these pods have {there}"
                yield Match(pod.where, f"{pod.path}.topologySpreadConstraints[{index}].minDomains", text)


def _spread_per_node(lint_input: LintInput) -> Iterator[Match]:
    for pod in _replicated(lint_input):
        replicas = _replicas(pod, lint_input)
        for index, constraint in _hard_spreads(pod):
            is_per_node = constraint.topology_key == labels.HOSTNAME and constraint.max_skew == 1
            if is_per_node and replicas > _FEW_REPLICAS:
                text = (
                    f"while one node has none of them, the others may have one: {replicas} replicas can need {replicas} nodes; "
                    "write a larger maxSkew, or ScheduleAnyway"
                )
                yield Match(pod.where, f"{pod.path}.topologySpreadConstraints[{index}]", text)


def _selector_misses_pod(lint_input: LintInput) -> Iterator[Match]:
    for pod in lint_input.pod_specs():
        for index, constraint in enumerate(pod.spec.topology_spread_constraints):
            if not selector_matches(constraint.label_selector, pod.metadata.labels):
                text = "its labelSelector does not select these pods: they are not counted, and nothing is spread"
                yield Match(pod.where, f"{pod.path}.topologySpreadConstraints[{index}]", text)


def _preference_costs(lint_input: LintInput) -> Iterator[Match]:
    for pod in _replicated(lint_input):
        affinity = pod.spec.affinity
        anti = affinity.pod_anti_affinity if affinity is not None else None
        for index, weighted in enumerate(anti.preferred if anti is not None else ()):
            if (
                weighted.pod_affinity_term.topology_key == labels.HOSTNAME
                and _replicas(pod, lint_input) > _FEW_REPLICAS
            ):
                path = f"{pod.path}.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
                text = "counts as required while nodes are planned, so it takes a new node for each pod as long as limits allow"
                yield Match(pod.where, path, text)


def _port_per_node(lint_input: LintInput) -> Iterator[Match]:
    for pod in _replicated(lint_input):
        ports = sorted({port.port for port in host_ports_of(pod.spec)})
        replicas = _replicas(pod, lint_input)
        if ports and replicas > 1:
            text = (
                f"host port {ports[0]} is there once per node: {replicas} replicas need {replicas} nodes; use a Service"
            )
            yield Match(pod.where, f"{pod.path}.containers", text)


def _replicated(lint_input: LintInput) -> Iterator[PodSource]:
    return (pod for pod in lint_input.pod_specs() if not isinstance(pod.carrier, DaemonSet))


def _hard_spreads(pod: PodSource) -> Iterator[tuple[int, TopologySpreadConstraint]]:
    for index, constraint in enumerate(pod.spec.topology_spread_constraints):
        if constraint.when_unsatisfiable == _HARD:
            yield index, constraint


def _zones(pod: PodSource, lint_input: LintInput) -> list[str]:
    """The zones in which some NodePool sells a node for the pod; none where no pool does, which another rule reports."""
    zones: set[str] = set()
    for fit in pod_fits(pod, lint_input):
        template = fit.offer.template
        for requirements in accepted_requirements(pod, template) if template is not None and fit.types else ():
            zone = requirements.requirement_for(labels.ZONE)
            zones.update(value for value in fit.offer.index.values(labels.ZONE, fit.types) if zone.allows(value))
    return sorted(zones - {""})


RULES = (
    Rule(
        "KL410",
        "anti-affinity-per-node",
        Severity.WARNING,
        Topic.WORKLOADS,
        "Required anti-affinity by node among more than three replicas.",
        "Every replica needs a node of its own, however small it is.",
        "Use `topologySpreadConstraints` over zones, or a larger `maxSkew` over nodes.",
        _node_per_replica,
    ),
    Rule(
        "KL411",
        "anti-affinity-beyond-zones",
        Severity.ERROR,
        Topic.WORKLOADS,
        "Required anti-affinity by zone among more replicas than there are zones for them.",
        "The surplus replicas stay pending.",
        "Spread over zones with `topologySpreadConstraints`.",
        _more_replicas_than_zones,
    ),
    Rule(
        "KL412",
        "more-domains-than-zones",
        Severity.ERROR,
        Topic.WORKLOADS,
        "A hard spread over zones with more `minDomains` than the NodePools have zones for the pods.",
        "Pods beyond `maxSkew` stay pending.",
        "Lower `minDomains`, or allow more zones.",
        _too_many_domains,
    ),
    Rule(
        "KL413",
        "spread-misses-own-pods",
        Severity.WARNING,
        Topic.WORKLOADS,
        "A spread constraint whose selector does not select the pods that carry it.",
        "The pods are not spread.",
        "Let `labelSelector` name labels of the pod template.",
        _selector_misses_pod,
    ),
    Rule(
        "KL414",
        "spread-per-node",
        Severity.WARNING,
        Topic.WORKLOADS,
        "A hard spread over nodes with `maxSkew: 1` among more than three replicas.",
        "New nodes begin empty, so each replica may need one.",
        "Write a larger `maxSkew`, or spread over zones.",
        _spread_per_node,
    ),
    Rule(
        "KL415",
        "preference-buys-nodes",
        Severity.NOTE,
        Topic.WORKLOADS,
        "Preferred anti-affinity by node among more than three replicas.",
        "Karpenter treats preferences as requirements as long as it can, and launches nodes for them.",
        "Use a spread with `ScheduleAnyway`, or set `--preference-policy Ignore`.",
        _preference_costs,
    ),
    Rule(
        "KL416",
        "host-port-per-node",
        Severity.WARNING,
        Topic.WORKLOADS,
        "A host port of a workload with several replicas.",
        "Each node has the port once, so each replica needs a node.",
        "Use a Service, or a DaemonSet where one pod on each node is meant.",
        _port_per_node,
    ),
)
