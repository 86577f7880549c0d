"""Stage 1: pods onto machines that exist or are on their way (SCH §10), by class and in counts.

A class is poured into one machine after another, as many pods as its free resources hold; that is arithmetic, not a loop over
pods. Machines still to be launched promise only what every one of their instance types has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.classes import PodClass
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Daemon
from karpenter.decide.provision.prospects import Prospects
from karpenter.decide.provision.templates import Template, runs_on, terms_of
from karpenter.decide.provision.variants import Variant
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, compatible, from_labels
from karpenter.model.resources import Resources

_STRICT: frozenset[str] = frozenset()


def most_copies(requests: Resources, left: Mapping[str, int], wanted: int) -> int:
    """How many pods with these requests fit into what is left, at most ``wanted``."""
    for name, amount in requests.items():
        if amount > 0:
            wanted = min(wanted, left.get(name, 0) // amount)
            if wanted <= 0:
                return 0
    return wanted


class Machine:
    """A machine during one decision: its view and what is still free on it."""

    def __init__(
        self, view: NodeView, template: Template | None, daemons: Sequence[Daemon], prospects: Prospects
    ) -> None:
        self.view = view
        self._index = template.index if template is not None else None
        self._types = prospects.types(view, self._index) if self._index is not None else 0
        self._labels = _defined(view, self._index)
        offered = (
            prospects.promised(view, self._index)
            if self._index is not None and self._types
            else self._allocatable(daemons)
        )
        self.left = res.subtract(offered, view.requested)
        self.pods: list[Pod] = []

    def _allocatable(self, daemons: Sequence[Daemon]) -> Resources:
        """What the machine has, less what DaemonSets will still take: all that run here less those already bound (SCH-220)."""
        view = self.view
        asked = res.parse(view.claim.spec.resources.requests) if view.claim is not None else {}
        allocatable = view.allocatable if view.launched else asked
        expected = (daemon.requests for daemon in daemons if self._runs(daemon))
        missing = res.subtract(res.add(*expected), view.daemon_requested)
        return res.subtract(allocatable, {name: max(0, amount) for name, amount in missing.items()})

    def _runs(self, daemon: Daemon) -> bool:
        """Whether the DaemonSet runs here; a node that still starts is going to be registered and initialised."""
        held = self._labels
        if self.view.managed and not self.view.initialized:
            held = held.without(labels.SIMULATION_ONLY).intersect(
                from_labels(dict.fromkeys(labels.SIMULATION_ONLY, "true"))
            )
        return runs_on(daemon.spec, self.view.taints) and any(
            compatible(held, term, _STRICT) for term in terms_of(daemon.spec)
        )

    def offers(self, asked: Requirements) -> bool:
        """Whether the machine's labels satisfy what is asked (strict, SCH-167); before launch, whichever it will get."""
        return all(self._certain(item) for item in asked.values())

    def _certain(self, asked: Requirement) -> bool:
        if self.view.launched or self._index is None or asked.key not in self._index.well_known:
            return compatible(self._labels, Requirements((asked,)), _STRICT)
        held = self.view.offers.of(asked.key)
        if asked.key in self.view.offers and held.implies(asked):
            return True
        return bool(self._types) and not self._types & ~self._index.implying(held, asked)

    def room(self, pod_class: PodClass, variant: Variant, wanted: int) -> int:
        """How many pods of the class fit here (SCH-272), at most ``wanted``."""
        fitting = most_copies(pod_class.requests, self.left, wanted)
        if not fitting or taints.untolerated(self.view.taints, variant.tolerations):
            return 0
        return fitting if not variant.requirements or self.offers(variant.requirements) else 0

    def take(self, pod_class: PodClass, pods: Sequence[Pod]) -> None:
        """Commit pods of a class (SCH-274)."""
        for name, amount in pod_class.requests.items():
            self.left[name] = self.left.get(name, 0) - amount * len(pods)
        self.pods.extend(pods)


def _defined(view: NodeView, index: TypeIndex | None) -> Requirements:
    """Labels that are settled. A claim's own labels are; a custom key it only requires will not become a label (SCH-622)."""
    if view.launched or view.claim is None:
        return view.offers
    if index is None:
        return Requirements(item for item in view.offers.values() if item.operator is Op.IN and len(item.values) == 1)
    return from_labels({**view.claim.metadata.labels, labels.HOSTNAME: view.hostname})


def machines(
    views: Sequence[NodeView], templates: Mapping[str, Template], daemons: Sequence[Daemon], prospects: Prospects
) -> tuple[Machine, ...]:
    """Machines pods may join, in the order they are tried: initialised first, then by name (SCH-270, SCH-095)."""
    staying = (view for view in views if not view.leaving)
    ordered = sorted(staying, key=lambda view: (not view.initialized, view.name))
    return tuple(Machine(view, templates.get(view.pool), daemons, prospects) for view in ordered)


def pour(
    pod_class: PodClass, variant: Variant, pods: Sequence[Pod], into: Sequence[Machine], closed: frozenset[str]
) -> list[Pod]:
    """Place pods of one class on machines in order; returns those left. ``closed`` are names of nodes they may not join."""
    waiting = list(pods)
    for machine in into:
        if not waiting:
            break
        if machine.view.node is not None and machine.view.node.metadata.name in closed:
            continue
        count = machine.room(pod_class, variant, len(waiting))
        if count:
            machine.take(pod_class, waiting[:count])
            del waiting[:count]
    return waiting
