"""Rules about one NodePool: its limits, requirements and taints against what its region sells."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from karpenter.api.apps import DaemonSet
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodePool, NodeSelectorRequirementWithMinValues
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.instancetypes.type_sets import members
from karpenter.lint.lint_input import LintInput, PoolOffer
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.lint.rules.reported_findings import advice, matched
from karpenter.lint.source_object import SourceObject
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirements
from karpenter.model.structural_schema import child_path
from karpenter.model.texts import count_text
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate, nodepool_requirements

_REQUIREMENTS = "spec.template.spec.requirements"
_LIMITS = "spec.limits"
#: Below this many types, spot capacity of all of them is often gone at once.
_FEWEST_SPOT_TYPES = 5
_NODES = "nodes"
_SHOWN = 3


def pools_with_offers(lint_input: LintInput) -> Iterator[tuple[SourceObject, PoolOffer]]:
    """The NodePools of which it is known what they can launch."""
    for where, pool in lint_input.of_type(NodePool):
        offer = lint_input.offers.get(pool.metadata.name)
        if offer is not None:
            yield where, offer


def _templates(lint_input: LintInput) -> Iterator[tuple[SourceObject, NodePoolTemplate]]:
    for where, offer in pools_with_offers(lint_input):
        if offer.template is not None:
            yield where, offer.template


def requirement_path(pool: NodePool, key: str) -> str:
    """The path of the requirement on a label; of all requirements where none names it."""
    for index, requirement in enumerate(pool.spec.template.spec.requirements):
        if labels.normalise(requirement.key) == key:
            return f"{_REQUIREMENTS}[{index}]"
    return _REQUIREMENTS


# -- limits -------------------------------------------------------------------------------------------------------------


def _no_limits(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        if not pool.spec.limits and pool.spec.replicas is None:
            yield Match(where, "spec", "has no limits: a faulty workload leads to nodes without end")


def _below_one_node(lint_input: LintInput) -> Iterator[Match]:
    for where, template in _templates(lint_input):
        limits = res.parse_resources(template.pool.spec.limits)
        for name, amount in limits.items():
            if name == _NODES or amount <= 0 or not template.types:
                continue
            smallest = template.index.smallest_capacity(name, template.types)
            if not template.types & template.index.within_limits({name: amount}):
                least = template.index.types[next(members(smallest))]
                has = res.resources_to_wire({name: least.capacity.get(name, 0)})[name]
                text = (
                    f"the smallest instance type of the pool, {least.name}, has {has}: the pool never launches a node"
                )
                yield Match(where, child_path(_LIMITS, name), text)


def _negative(lint_input: LintInput) -> Iterator[Match]:
    for where, _, finding in advice(lint_input):
        if finding.code == "range":
            yield matched(where, finding)


# -- requirements -------------------------------------------------------------------------------------------------------


def _no_offers(lint_input: LintInput) -> Iterator[Match]:
    for where, offer in pools_with_offers(lint_input):
        if offer.template is not None and offer.template.types:
            continue
        key = _blocking_key(offer)
        place = f" in {offer.region}" if offer.region else ""
        why = f"; without the requirement on {key} there are some" if key else ""
        text = f"no instance type{place} has an offering that meets all requirements{why}"
        yield Match(where, requirement_path(offer.pool, key), text)


def _blocking_key(offer: PoolOffer) -> str:
    """The label without whose requirement something could be launched; empty where there is no such single one."""
    requirements = nodepool_requirements(offer.pool)
    for key in requirements:
        rest = requirements.without((key,))
        if offer.index.matching(rest) & offer.index.with_available_offering(rest):
            return key
    return ""


def _min_values(lint_input: LintInput) -> Iterator[Match]:
    for where, template in _templates(lint_input):
        for key, count in template.index.min_values_shortages(template.requirements, template.types).items():
            least = template.requirements[key].min_values
            text = f"minValues {least} cannot be met: the requirements leave {count_text(count, 'value')} of {key}"
            yield Match(where, requirement_path(template.pool, key), text)


def _unknown_values(lint_input: LintInput) -> Iterator[Match]:
    for where, offer in pools_with_offers(lint_input):
        for index, requirement in enumerate(offer.pool.spec.template.spec.requirements):
            key = labels.normalise(requirement.key)
            offered_values = offer.index.values(key, offer.index.all_types)
            for value in _unknown(requirement, offered_values):
                near = difflib.get_close_matches(value, offered_values, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                place = f"no instance type of {offer.region}" if offer.region else "no instance type"
                yield Match(where, f"{_REQUIREMENTS}[{index}].values", f"{place} has {key} {value}{hint}")


def _unknown(requirement: NodeSelectorRequirementWithMinValues, offered_values: frozenset[str]) -> list[str]:
    key = labels.normalise(requirement.key)
    is_checked = offered_values and key not in labels.CLOSED_LABEL_VALUES and requirement.operator in ("In", "NotIn")
    return sorted(set(requirement.values) - offered_values) if is_checked else []


def _ignored_values(lint_input: LintInput) -> Iterator[Match]:
    for where, obj, finding in advice(lint_input):
        if isinstance(obj, NodePool) and finding.code == "values":
            yield matched(where, finding)


def _few_spot_types(lint_input: LintInput) -> Iterator[Match]:
    for where, template in _templates(lint_input):
        names = sorted({template.index.types[position].name for position in members(template.types)})
        if is_spot_only(template.requirements) and len(names) < _FEWEST_SPOT_TYPES:
            text = f"spot capacity of {', '.join(names)} alone: when it is gone, pods wait; allow more types"
            yield Match(where, requirement_path(template.pool, labels.CAPACITY_TYPE), text)


def _no_fallback(lint_input: LintInput) -> Iterator[Match]:
    templates = list(_templates(lint_input))
    for where, template in templates:
        if is_spot_only(template.requirements) and not any(
            _is_fallback(other, template) for _, other in templates if other is not template
        ):
            text = "allows spot capacity only, and no other NodePool of the input allows on-demand for the same pods"
            yield Match(where, requirement_path(template.pool, labels.CAPACITY_TYPE), text)


def _is_fallback(other: NodePoolTemplate, template: NodePoolTemplate) -> bool:
    return other.requirements.requirement_for(labels.CAPACITY_TYPE).allows(labels.ON_DEMAND) and {
        (taint.key, taint.effect) for taint in other.taints
    } <= {(taint.key, taint.effect) for taint in template.taints}


def is_spot_only(requirements: Requirements) -> bool:
    """Whether nothing but spot capacity is launched."""
    requirement = requirements.requirement_for(labels.CAPACITY_TYPE)
    return requirement.operator is Op.IN and requirement.values == frozenset({labels.SPOT})


def _single_zone(lint_input: LintInput) -> Iterator[Match]:
    for where, template in _templates(lint_input):
        requirement = template.requirements.requirement_for(labels.ZONE)
        zones = template.index.values(labels.ZONE, template.index.all_types)
        is_single = requirement.operator is Op.IN and len(requirement.values) == 1
        siblings = [other for _, other in _templates(lint_input) if other is not template]
        if is_single and len(zones) > 1 and not any(_is_other_zone(other, template) for other in siblings):
            (zone,) = requirement.values
            text = f"all nodes are in {zone}: an outage of the zone, or its lack of capacity, stops the pool"
            yield Match(where, requirement_path(template.pool, labels.ZONE), text)


def _is_other_zone(other: NodePoolTemplate, template: NodePoolTemplate) -> bool:
    """Whether the other pool takes the same pods elsewhere: one pool for each zone is a pattern."""
    mine = template.requirements.requirement_for(labels.ZONE).values
    theirs = other.requirements.requirement_for(labels.ZONE)
    return other.taints == template.taints and not (theirs.operator is Op.IN and theirs.values == mine)


def _mixed_architectures(lint_input: LintInput) -> Iterator[Match]:
    for where, template in _templates(lint_input):
        architectures = template.index.values(labels.ARCH, template.types)
        is_left_open = requirement_path(template.pool, labels.ARCH) == _REQUIREMENTS
        if len(architectures) > 1 and is_left_open:
            text = f"launches {' and '.join(sorted(architectures))}: a pod without a selector may get either; name one or both"
            yield Match(where, _REQUIREMENTS, text)


# -- taints, daemons, classes -------------------------------------------------------------------------------------------


def _untolerated_taint(lint_input: LintInput) -> Iterator[Match]:
    pods = [pod for pod in lint_input.pod_specs() if not isinstance(pod.carrier, DaemonSet)]
    for where, pool in lint_input.of_type(NodePool):
        for index, entry in enumerate(pool.spec.template.spec.taints if pods else ()):
            taint = entry.as_taint()
            is_hard = taint.effect != "PreferNoSchedule"
            if is_hard and not any(taints.tolerates_taint(pod.spec.tolerations, taint) for pod in pods):
                text = f"no pod of the input tolerates {taints.taint_text(taint)}: the pool stays empty"
                yield Match(where, f"spec.template.spec.taints[{index}]", text)


def _crowded_by_daemons(lint_input: LintInput) -> Iterator[Match]:
    for where, template in _templates(lint_input):
        crowded = sorted({name for position in members(template.types) if (name := _crowded(template, position))})
        if crowded:
            more = f" and {len(crowded) - _SHOWN} more" if len(crowded) > _SHOWN else ""
            text = (
                f"DaemonSets take more than half of {', '.join(crowded[:_SHOWN])}{more}: ask for larger types, "
                "for example with karpenter.k8s.aws/instance-cpu Gt"
            )
            yield Match(where, _REQUIREMENTS, text)


def _crowded(template: NodePoolTemplate, position: int) -> str:
    """The type's name where DaemonSets take more than half of its CPU or memory; else empty."""
    overhead, instance_type = template.overhead_of(position), template.index.types[position]
    allocatable = instance_type.allocatable
    is_full = any(overhead.get(name, 0) * 2 > allocatable.get(name, 0) > 0 for name in (res.CPU, res.MEMORY))
    return instance_type.name if is_full else ""


def _missing_class(lint_input: LintInput) -> Iterator[Match]:
    names: Mapping[str, list[str]] = {
        "EC2NodeClass": [node_class.metadata.name for _, node_class in lint_input.of_type(EC2NodeClass)],
        "KWOKNodeClass": [node_class.metadata.name for _, node_class in lint_input.of_type(KWOKNodeClass)],
    }
    for where, pool in lint_input.of_type(NodePool):
        reference = pool.spec.template.spec.node_class_ref
        class_names = names.get(reference.kind, [])
        if class_names and reference.name not in class_names:
            near = difflib.get_close_matches(reference.name, class_names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            text = f"there is no {reference.kind} {reference.name} among those of the input{hint}"
            yield Match(where, "spec.template.spec.nodeClassRef.name", text)


RULES = (
    Rule(
        "KL201",
        "limits-missing",
        Severity.WARNING,
        Topic.POOLS,
        "A NodePool without `limits`.",
        "A faulty autoscaler or a loop of Jobs leads to new nodes until the account's quota ends it.",
        "Write `limits.cpu`, some way above the expected peak.",
        _no_limits,
    ),
    Rule(
        "KL202",
        "limit-below-one-node",
        Severity.ERROR,
        Topic.POOLS,
        "A limit below the smallest instance type of the pool. A limit of 0 is a switch and not reported.",
        "The pool never launches a node.",
        "Raise the limit, or allow smaller types.",
        _below_one_node,
    ),
    Rule(
        "KL203",
        "negative-limit",
        Severity.ERROR,
        Topic.POOLS,
        "A limit below zero.",
        "The pool never launches a node.",
        "Write a positive quantity, or 0 to switch the pool off.",
        _negative,
    ),
    Rule(
        "KL204",
        "requirements-without-offers",
        Severity.ERROR,
        Topic.POOLS,
        "Requirements that no offering of the region meets.",
        "The pool never launches a node, and pods that need it stay pending.",
        "Loosen the requirement that the finding names. `karpenter plan -f` shows what is for sale.",
        _no_offers,
    ),
    Rule(
        "KL205",
        "min-values-out-of-reach",
        Severity.ERROR,
        Topic.POOLS,
        "`minValues` above what the requirements leave.",
        "With the policy Strict the pool launches nothing.",
        "Lower `minValues`, or allow more values.",
        _min_values,
    ),
    Rule(
        "KL206",
        "unknown-value",
        Severity.WARNING,
        Topic.POOLS,
        "A value of a well-known label that no instance type of the region has.",
        "The value is misspelt, or of another region; it selects nothing.",
        "Correct the value or leave it out.",
        _unknown_values,
    ),
    Rule(
        "KL207",
        "ignored-value",
        Severity.WARNING,
        Topic.POOLS,
        "A value that the label does not have, such as capacity type `onDemand`.",
        "The value is ignored; only the others count.",
        "Write `spot`, `on-demand` or `reserved`.",
        _ignored_values,
    ),
    Rule(
        "KL208",
        "few-spot-types",
        Severity.WARNING,
        Topic.POOLS,
        "Spot capacity only, of fewer than five instance types.",
        "Spot capacity comes and goes by type: with few types, pods wait and interruptions hit many nodes at once.",
        "Ask for categories and sizes instead of single types.",
        _few_spot_types,
    ),
    Rule(
        "KL209",
        "spot-without-fallback",
        Severity.NOTE,
        Topic.POOLS,
        "Spot capacity only, and no other NodePool that allows on-demand for the same pods.",
        "When spot capacity is gone, pods stay pending.",
        "Allow `on-demand` too, or add a NodePool of lower weight.",
        _no_fallback,
    ),
    Rule(
        "KL210",
        "single-zone",
        Severity.NOTE,
        Topic.POOLS,
        "A NodePool of one zone, without a sibling in others.",
        "The zone's outage is the pool's outage, and spot capacity of one zone is scarce.",
        "Allow more zones; volumes and spread constraints choose among them.",
        _single_zone,
    ),
    Rule(
        "KL211",
        "architecture-left-open",
        Severity.NOTE,
        Topic.POOLS,
        "A NodePool that allows amd64 and arm64 without saying so.",
        "Images for one architecture crash on nodes of the other.",
        "Require `kubernetes.io/arch`, with both values where images are built for both.",
        _mixed_architectures,
    ),
    Rule(
        "KL212",
        "taint-without-toleration",
        Severity.WARNING,
        Topic.POOLS,
        "A taint that no pod of the input tolerates.",
        "The pool stays empty; the pods meant for it run elsewhere.",
        "Add the toleration to the pods, or correct key, value and effect.",
        _untolerated_taint,
    ),
    Rule(
        "KL213",
        "daemonsets-fill-nodes",
        Severity.NOTE,
        Topic.POOLS,
        "DaemonSets that take more than half of an instance type the pool may launch.",
        "Plans count DaemonSets, but a cluster of small nodes pays mostly for agents.",
        "Ask for larger types.",
        _crowded_by_daemons,
    ),
    Rule(
        "KL214",
        "node-class-missing",
        Severity.WARNING,
        Topic.POOLS,
        "A node class that is not among those of the input.",
        "A NodePool without its class is not ready and launches nothing.",
        "Correct the name, or lint the file with the class, too.",
        _missing_class,
    ),
)
