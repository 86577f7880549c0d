"""What is known of scheduling passes of what-if questions, whatever pods it was asked for.

Where pods need nothing of other pods, a pass over them depends on little: on how many there are of each kind, on the nodes that
have room for one of them, in the order they are tried, and on what can be bought. So what follows from its result outlives the
decision: as long as nothing of that changes it is the same, whatever happens on other nodes. Many nodes have pods of the same
kinds, so one pass tells it for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from karpenter.model.requirements import Requirements
from karpenter.scheduling.existing_nodes import ExistingNode
from karpenter.scheduling.offerings.purchase_options import PurchaseOptionIndex
from karpenter.scheduling.pass_result import PassResult
from karpenter.scheduling.whatif.movers import Movers

#: Numbers of the pods and of the nodes with room; between them the identity of what can be bought, which is kept with the facts.
FactsKey = tuple[int, int, int]


@dataclass(frozen=True)
class Host:
    """An existing node that takes pods. ``initialized``: it is ready for them now (DIS-165)."""

    key: str
    name: str
    initialized: bool


@dataclass(eq=False)
class PassFacts:
    """What follows from the result of a pass with ``options`` to buy.

    ``hosts``: the existing nodes that take pods if all of them fit there, None otherwise. The rest is worked out when it is asked
    for: the least that new nodes cost, in USD per hour, and whether all of them could be had in some way.
    """

    options: PurchaseOptionIndex
    hosts: tuple[Host, ...] | None
    minimum_price: float | None = None
    buys_refused: dict[Requirements, bool] = field(default_factory=dict)


def facts_of(options: PurchaseOptionIndex, result: PassResult) -> PassFacts:
    """What a result says without further work."""
    all_fit = not result.demands and not result.unschedulable
    return PassFacts(options, hosts_of(result) if all_fit else None)


def hosts_of(result: PassResult) -> tuple[Host, ...]:
    """The existing nodes that take pods."""
    views = (placement.node.view for placement in result.placements)
    return tuple(Host(view.key, view.name, view.initialized or not view.managed) for view in views)


def node_content(node: ExistingNode) -> tuple[object, ...]:
    """All that a pass reads of a node for pods that need room alone, and that its facts tell.

    Instance types and DaemonSets are read through what is free and possible; facts are forgotten when types change.
    """
    view = node.view
    return (
        view.key,
        view.name,
        view.pool,
        view.managed,
        view.initialized,
        view.launched,
        frozenset(node.free.items()),
        view.taints,
        view.requirements,
        node.known_labels,
        node.possible_types,
    )


def pod_content(movers: Movers) -> tuple[object, ...]:
    """All that a pass reads of pods that need room alone."""
    return tuple((group.signature, len(group.pods), group.relaxation_steps, group.virtual) for group in movers.groups)
