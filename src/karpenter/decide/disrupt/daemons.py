"""DaemonSets whose pods have no room on a machine they belong on: it was bought before them, or before they grew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Daemon
from karpenter.decide.provision.templates import runs_on, terms_of
from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.model.requirements import compatible
from karpenter.model.resources import Resources

_STRICT: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Misfit:
    """A DaemonSet (namespace and name) and how much of what its pod lacks on the machine."""

    daemon_set: str
    short: Resources


def misfits(daemons: Iterable[Daemon], view: NodeView) -> Iterator[Misfit]:
    """DaemonSets that belong on an initialised machine, have no pod there, and whose pod does not fit beside the others."""
    if not view.initialized:
        return
    there = set(_daemon_sets_on(view))
    free = res.subtract(view.allocatable, view.requested)
    for daemon in daemons:
        if daemon.name not in there and _belongs(daemon, view):
            short = {name: amount - free.get(name, 0) for name, amount in daemon.requests.items() if amount > 0}
            lacking = {name: amount for name, amount in short.items() if amount > 0}
            if lacking:
                yield Misfit(daemon.name, lacking)


def _belongs(daemon: Daemon, view: NodeView) -> bool:
    return runs_on(daemon.spec, view.taints) and any(
        compatible(view.offers, term, _STRICT) for term in terms_of(daemon.spec)
    )


def _daemon_sets_on(view: NodeView) -> Iterator[str]:
    for pod in view.pods:
        if pods.is_active(pod):
            yield from (
                f"{pod.metadata.namespace}/{owner.name}"
                for owner in pod.metadata.owner_references
                if owner.kind == "DaemonSet"
            )
