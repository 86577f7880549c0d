"""Domains that all pods of a gang can be in: values of a label of nodes, of NodePools and of offerings."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.model.requirements import Requirements, requirements_from_wire
from karpenter.scheduling.problem import Problem
from karpenter.state.snapshot import ClusterSnapshot

#: No more domains are tried for a gang.
MAX_DOMAINS = 16


def known_domains(problem: Problem, key: str) -> tuple[str, ...]:
    """The values of a label that nodes have or can have, sorted."""
    values = set(nodes_by_domain(problem.snapshot, key).values())
    for pool in problem.snapshot.pools:
        template = pool.spec.template
        if key in template.metadata.labels:
            values.add(template.metadata.labels[key])
        values |= _values(requirements_from_wire(template.spec.requirements), key)
    for types in {id(each): each for each in problem.instance_types.values()}.values():
        for instance_type in types.instance_types:
            values |= _values(instance_type.requirements, key)
            values.update(*(_values(offering.requirements, key) for offering in instance_type.offerings))
    return tuple(sorted(values)[:MAX_DOMAINS])


def nodes_by_domain(snapshot: ClusterSnapshot, key: str) -> Mapping[str, str]:
    """The domain of each node, by its name and its key; nodes that are not in exactly one are left out."""
    domains: dict[str, str] = {}
    for node in snapshot.nodes:
        values = _values(node.requirements, key)
        if len(values) == 1:
            domains[node.name] = domains[node.key] = next(iter(values))
    return domains


def _values(requirements: Requirements, key: str) -> frozenset[str]:
    stated = requirements.get(key)
    return stated.values if stated is not None and not stated.complement else frozenset()
