"""What if these machines were gone (DIS §7)? Asked of one snapshot, over and over, with the engine that places waiting pods.

First everybody who waits anyway is given a place, pods of machines that are leaving included. What candidates are asked about
after that is their own pods alone: nobody's wait keeps a machine, and no machine is bought twice for the same pods (Beyond of
DIS-161). What a pass decides is settled here, so that its moves fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.candidates import Circumstances, Judge, is_quiet
from karpenter.decide.disrupt.command import Candidate, Command
from karpenter.decide.disrupt.costs import disruption_cost
from karpenter.decide.plan import UnplacedPod
from karpenter.decide.provision import Options, eligible, provision
from karpenter.decide.provision.prepared import Prepared, Relocated
from karpenter.model import pods
from karpenter.model.buffers import is_virtual

_SHOWN_PODS = 5


@dataclass(frozen=True)
class Impossible:
    """Machines that cannot go, because their pods would be left without a place."""

    why: str


class World:
    """A snapshot, ready for questions about its machines, and what has been decided about it so far.

    ``coming``: machines that were going to be bought; they are only for pods that are asked about beside them.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        indexes: Mapping[str, TypeIndex],
        circumstances: Circumstances,
        options: Options,
        judge: Judge,
        coming: Sequence[NodeView] = (),
    ) -> None:
        self._now = circumstances.now
        self._judge = judge
        self._snapshot = snapshot
        everything = replace(snapshot, nodes=(*snapshot.nodes, *coming))
        worth = {view.key: self._worth_keeping(view) for view in everything.nodes}
        self._prepared = Prepared(everything, indexes, self._now, options, lambda view: (worth[view.key], view.name))
        self._prepared.close(view.key for view in coming)
        #: Machines that pods who wait are going to need, and the virtual pods of capacity buffers by machine.
        self.expecting: frozenset[str] = frozenset()
        self._virtual: dict[str, tuple[Pod, ...]] = {}
        self._settle_those_who_wait(indexes, options)
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}

    def leave_out(self, keys: Iterable[str]) -> None:
        """Nobody moves to these machines any more."""
        self._prepared.close(keys)

    def shelter(self) -> None:
        """From now on machines in their own quiet time take nobody: this is consolidation, not drift."""
        restless = (v.key for v in self._snapshot.nodes if not is_quiet(v, self._pools.get(v.pool), self._now))
        self._prepared.close(restless)

    def _worth_keeping(self, view: NodeView) -> float:
        """Pods move to machines that will stay: last to those that are dear for what they hold."""
        moving = [pod for pod in view.pods if pods.needs_a_place(pod)]
        return (self._judge.prices.of(view) or 0.0) / disruption_cost(moving) if view.managed else 0.0

    def _settle_those_who_wait(self, indexes: Mapping[str, TypeIndex], options: Options) -> None:
        leaving = eligible.leaving(self._snapshot, self._now)
        if self._snapshot.groups or leaving:
            plan = provision(self._snapshot, indexes, self._now, options)
            self._prepared.settle(plan.existing, leaving)
            self.expecting = frozenset(i.key for i in plan.existing if not all(map(is_virtual, i.pods)))
            self._virtual = {i.key: tuple(filter(is_virtual, i.pods)) for i in plan.existing}

    # -- questions --------------------------------------------------------------------------------------------------------

    def moving(self, candidates: Iterable[Candidate]) -> list[Pod]:
        """Pods that need another place when these go; what nothing can evict needs none in advance (DIS-162).

        The room that capacity buffers keep on them moves along.
        """
        going = tuple(candidates)
        found = [pod for candidate in going for pod in candidate.pods if self._moves(pod)]
        return [*found, *(pod for candidate in going for pod in self._virtual.get(candidate.key, ()))]

    def _moves(self, pod: Pod) -> bool:
        if not pods.is_reschedulable(pod, self._now):
            return False
        over = self._judge.protections.over(pod)
        return not over or not eligible.fully_blocked(pod, over, self._now)

    def elsewhere(self, candidates: Sequence[Candidate]) -> Relocated | None:
        """Where their pods go on machines that exist; None where they do not all fit there."""
        found = self._prepared.elsewhere(self.moving(candidates), (candidate.key for candidate in candidates))
        return None if found is None or found.uninitialised else found

    def as_chosen(self, candidates: Sequence[Candidate], chosen: Command) -> Relocated | None:
        """Where their pods go on machines that exist and on those that were going to be bought for them, as it was meant."""
        bought = {planned.name: planned.pods for planned in chosen.replacements}
        meant = {**bought, **{placed.key: placed.pods for placed in chosen.placed}}
        planned = {pod.metadata.uid: key for key, inside in meant.items() for pod in inside}
        gone = (candidate.key for candidate in candidates)
        found = self._prepared.as_planned(self.moving(candidates), gone, bought, planned)
        return None if found is None or not found.uninitialised <= bought.keys() else found

    def moved(self, candidates: Sequence[Candidate], below: float = inf) -> Relocated | Impossible | None:
        """Where their pods go; None where it is plain that what must be bought costs ``below`` or more."""
        found = self._prepared.moved(self.moving(candidates), (candidate.key for candidate in candidates), below)
        if found is None:
            return None
        if found.stranded:
            return Impossible(_listed(found.stranded))
        if found.uninitialised:
            waiting = (pod for item in found.placed if item.key in found.uninitialised for pod in item.pods)
            name = next(pod.metadata for pod in waiting)
            key = min(found.uninitialised)
            return Impossible(f"{name.namespace}/{name.name} => would schedule against uninitialized nodeclaim/{key}")
        return found

    def least_price(self, candidates: Iterable[Candidate]) -> float:
        """USD per hour that machines for their pods alone would cost at least."""
        return self._prepared.least_price(self.moving(candidates))

    def least_beside(self, candidates: Sequence[Candidate]) -> float:
        """USD per hour that machines cost at least for those of their pods who find no room on others."""
        return self._prepared.least_beside(self.moving(candidates), (candidate.key for candidate in candidates))

    def settle(self, command: Command) -> None:
        """Its machines go, and their pods where it says."""
        gone = (candidate.key for candidate in command.candidates)
        self._prepared.settle(command.placed, self.moving(command.candidates), gone, command.replacements)


def _listed(stranded: Sequence[UnplacedPod]) -> str:
    """The first pods without a place and why (DIS-168)."""
    shown = [
        f"{item.pod.metadata.namespace}/{item.pod.metadata.name} => "
        + ("; ".join(reason.detail for reason in item.reasons if reason.detail) or "no machine can hold it")
        for item in stranded[:_SHOWN_PODS]
    ]
    rest = len(stranded) - len(shown)
    return "; ".join(shown) + (f" and {rest} other(s)" if rest else "")
