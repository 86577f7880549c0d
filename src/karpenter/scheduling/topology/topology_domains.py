"""The domains of topology keys: those of existing nodes and those in which NodePools can create nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from karpenter.model import labels
from karpenter.model.requirements import Op, Requirements, compatible
from karpenter.scheduling.existing_nodes import UNDECIDED, ExistingNodeIndex
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCounts, taints_count
from karpenter.state.topology_terms import TopologyNodeFilter, TopologyTerm


class TopologyDomains:
    """The domains of existing nodes and of nodes that could be launched (SCH §19.2)."""

    def __init__(
        self, bound_pod_counts: BoundPodCounts, templates: Sequence[NodePoolTemplate], existing_nodes: ExistingNodeIndex
    ) -> None:
        self._bound_pod_counts = bound_pod_counts
        self._existing_nodes = existing_nodes
        self._templates = templates
        self._counted_cache: dict[TopologyTerm, frozenset[str]] = {}
        self._node_domains_cache: dict[tuple[str, TopologyNodeFilter | None], frozenset[str]] = {}
        self._template_domains_cache: dict[tuple[str, TopologyNodeFilter], frozenset[str]] = {}
        self._new_node_domains_cache: dict[str, frozenset[str]] = {}
        self._lacking_cache: dict[str, bool] = {}

    def counted_domains(self, term: TopologyTerm) -> frozenset[str]:
        """The domains of nodes that a constraint counts, and of nodes of that kind that pools could have (SCH-490 to SCH-492).

        As in kube-scheduler the constraint's own policies decide, not what its pods insist on besides (unlike SCH-547).
        """
        cached = self._counted_cache.get(term)
        if cached is None:
            cached = self._counted_cache[term] = self._domains_of_nodes(term) | self._domains_of_new_nodes(term)
        return cached

    def _domains_of_nodes(self, term: TopologyTerm) -> frozenset[str]:
        place = (term.topology_key, term.node_filter)
        domains = self._node_domains_cache.get(place)
        if domains is None:
            domains = self._bound_pod_counts.domains(term.topology_key, term.node_filter)
            domains = self._node_domains_cache[place] = domains.union(self._domains_of_in_flight(term, domains))
        return domains

    def _domains_of_in_flight(self, term: TopologyTerm, other_domains: frozenset[str]) -> Iterator[str]:
        """Further domains of nodes to be launched: their claims leave the label open, but their types have one value only."""
        for value, having in self._existing_nodes.by_label_value(term.topology_key).items():
            if value is not None and value != UNDECIDED and value not in other_domains:
                coming = (node for node in self._existing_nodes.nodes_in(having) if not node.view.launched)
                if any(node.counting_certainty(term.node_filter) for node in coming):
                    yield value

    def _domains_of_new_nodes(self, term: TopologyTerm) -> frozenset[str]:
        if term.node_filter is None:
            return self.of_new_nodes(term.topology_key)
        place = (term.topology_key, term.node_filter)
        new_node_domains = self._template_domains_cache.get(place)
        if new_node_domains is None:
            domains_of_templates = (
                self._domains_of_template(template, term.topology_key, term.node_filter) for template in self._templates
            )
            new_node_domains = self._template_domains_cache[place] = frozenset().union(*domains_of_templates)
        return new_node_domains

    def _domains_of_template(self, template: NodePoolTemplate, key: str, counted: TopologyNodeFilter) -> frozenset[str]:
        """The domains in which a pool could have nodes that a constraint counts."""
        if not taints_count(counted, template.taints):
            return frozenset()
        if not all(key == labels.HOSTNAME or template.label_values(key) for key in counted.required_topology_keys):
            return frozenset()
        if counted.node_alternatives is None:
            return template.label_values(key)
        return frozenset().union(
            *(self._domains_of_template_for(template, key, asked) for asked in counted.node_alternatives)
        )

    def _domains_of_template_for(self, template: NodePoolTemplate, key: str, asked: Requirements) -> frozenset[str]:
        """The domains in which a pool could have nodes for pods that ask so, sold out or not."""
        index = template.index
        if not compatible(template.requirements, asked, index.well_known):
            return frozenset()
        requirements = template.requirements.intersect(asked)
        types = template.types & index.matching(requirements) & index.matching(asked)
        sales = [form for form, on in index.types_by_offering_requirements.items() if on & types and key in form]
        if sales:
            forms = [
                sale.requirement_for(key).values for sale in sales if compatible(requirements, sale, index.well_known)
            ]
            return frozenset().union(*forms)
        own = requirements.requirement_for(key)
        values = index.values(key, types) or (own.values if types and own.operator is Op.IN else ())
        return frozenset(value for value in values if own.allows(value))

    def of_new_nodes(self, key: str) -> frozenset[str]:
        """The domains in which some pool could have a node."""
        cached = self._new_node_domains_cache.get(key)
        if cached is None:
            cached = self._new_node_domains_cache[key] = frozenset().union(
                *(template.label_values(key) for template in self._templates)
            )
        return cached

    def some_lack_label(self, key: str) -> bool:
        """Whether some pool has nodes without the label."""
        cached = self._lacking_cache.get(key)
        if cached is None:
            cached = self._lacking_cache[key] = any(not template.label_values(key) for template in self._templates)
        return cached
