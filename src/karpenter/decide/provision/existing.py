"""Stage 1: pods onto machines that exist or are on their way (SCH §10), by class and in counts.

A class is poured into one machine after another, as many pods as its free resources hold; that is arithmetic, not a loop over
pods. Machines still to be launched promise only what every one of their instance types has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from karpenter.api.core import Pod
from karpenter.cluster.classes import PodClass
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Daemon
from karpenter.decide.provision.templates import Template, runs_on, terms_of
from karpenter.decide.provision.variants import Variant
from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.requirements import Op, Requirements, compatible, from_wire
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

    def __init__(self, view: NodeView, template: Template | None, daemons: Sequence[Daemon]) -> None:
        self.view = view
        self.template = template
        self._types = 0
        if not view.launched and template is not None and view.claim is not None:
            wanted = from_wire(view.claim.spec.requirements)
            self._types = template.index.matching(wanted) & template.index.buyable(wanted)
        allocatable = view.allocatable if view.launched else self._promised()
        free = res.subtract(allocatable, view.requested)
        self.left = res.subtract(free, self._reserve(daemons))
        self.pods: list[Pod] = []

    def _promised(self) -> Resources:
        """What a claim that has not launched will offer at least (SCH §2 Beyond)."""
        view = self.view
        assert view.claim is not None
        asked = res.parse(view.claim.spec.resources.requests)
        if self.template is None or not self._types:
            return asked
        index = self.template.index
        types = (item for position, item in enumerate(index.types) if self._types >> position & 1)
        least = res.minimum(item.allocatable for item in types)
        return res.maximum((least, asked))

    def _reserve(self, daemons: Sequence[Daemon]) -> Resources:
        """What DaemonSets will still take: all that run here less those already bound (SCH-220)."""
        view = self.view
        expected = [
            daemon.requests
            for daemon in daemons
            if runs_on(daemon.spec, view.taints) and any(self.offers(term) for term in terms_of(daemon.spec))
        ]
        missing = res.subtract(res.add(*expected), view.daemon_requested)
        return {name: max(0, amount) for name, amount in missing.items()}

    def offers(self, asked: Requirements) -> bool:
        """Whether the machine's labels satisfy what is asked (strict, SCH-167)."""
        if not compatible(self.view.offers, asked, _STRICT if self.view.launched else self._open()):
            return False
        return self.view.launched or all(self._certain(key, asked) for key in asked)

    def _open(self) -> frozenset[str]:
        return self.template.index.well_known if self.template else _STRICT

    def _certain(self, key: str, asked: Requirements) -> bool:
        """Before launch a label is only promised if every value it may get is acceptable."""
        offers = self.view.offers
        if key in offers:
            held = offers[key]
            return held.operator is Op.IN and all(asked[key].allows(value) for value in held.values)
        if self.template is None or key not in self.template.index.well_known:
            return True
        return self._types & ~self.template.index.matching(Requirements((asked[key],))) == 0

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


def machines(
    views: Sequence[NodeView], templates: Mapping[str, Template], daemons: Sequence[Daemon]
) -> tuple[Machine, ...]:
    """Machines pods may join, in the order they are tried: initialised first, then by name (SCH-270, SCH-095)."""
    staying = (view for view in views if not view.leaving)
    ordered = sorted(staying, key=lambda view: (not view.initialized, view.name))
    return tuple(Machine(view, templates.get(view.pool), daemons) for view in ordered)


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
