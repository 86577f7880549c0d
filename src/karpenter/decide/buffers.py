"""What a plan means for capacity buffers, and what is left of it for everybody else (SCH-740, SCH-741)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from karpenter.api.core import Pod
from karpenter.decide.plan import PlacedPods, Plan, PlannedClaim
from karpenter.model.buffers import count_by_buffer, is_virtual


@dataclass(frozen=True)
class Placement:
    """What became of one buffer's pods: how many are on machines that are ready, need machines that are not, found no place."""

    fitting: int = 0
    new: int = 0
    failed: int = 0


def placements(plan: Plan, is_ready: Callable[[str], bool]) -> Mapping[str, Placement]:
    """The placement of every buffer with pods in the plan, by ``namespace/name``. ``is_ready`` tells of a view's key."""
    fitting = count_by_buffer(pod for placed in plan.existing if is_ready(placed.key) for pod in placed.pods)
    starting = count_by_buffer(pod for placed in plan.existing if not is_ready(placed.key) for pod in placed.pods)
    bought = count_by_buffer(pod for claim in plan.claims for pod in claim.pods)
    failed = count_by_buffer(unplaced.pod for unplaced in plan.unplaced)
    return {
        buffer: Placement(
            fitting.get(buffer, 0), starting.get(buffer, 0) + bought.get(buffer, 0), failed.get(buffer, 0)
        )
        for buffer in sorted({*fitting, *starting, *bought, *failed})
    }


def held(plan: Plan) -> Mapping[str, int]:
    """How many virtual pods each machine holds, by key of its view. Beyond: those about to be bought count as well."""
    found: Counter[str] = Counter()
    for key, pods in _assigned(plan):
        found[key] += sum(map(is_virtual, pods))
    return {key: count for key, count in found.items() if count}


def _assigned(plan: Plan) -> Iterable[tuple[str, tuple[Pod, ...]]]:
    yield from ((placed.key, placed.pods) for placed in plan.existing)
    yield from ((claim.name, claim.pods) for claim in plan.claims)


def without_virtual(plan: Plan) -> Plan:
    """The plan as far as it is about real pods; machines bought for virtual ones alone stay in it, for nobody."""
    if not any(True for _ in _virtual(plan)):
        return plan
    return replace(
        plan,
        claims=bought_for_real(plan.claims),
        existing=placed_for_real(plan.existing),
        unplaced=tuple(unplaced for unplaced in plan.unplaced if not is_virtual(unplaced.pod)),
    )


def _virtual(plan: Plan) -> Iterable[Pod]:
    yield from (pod for _, pods in _assigned(plan) for pod in pods if is_virtual(pod))
    yield from (unplaced.pod for unplaced in plan.unplaced if is_virtual(unplaced.pod))


def placed_for_real(placed: Iterable[PlacedPods]) -> tuple[PlacedPods, ...]:
    """Only real pods, and only the machines that any of them is meant for."""
    found = (replace(item, pods=_real(item.pods)) for item in placed)
    return tuple(item for item in found if item.pods)


def bought_for_real(claims: Iterable[PlannedClaim]) -> tuple[PlannedClaim, ...]:
    """All the machines, for their real pods."""
    return tuple(replace(claim, pods=_real(claim.pods)) for claim in claims)


def _real(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if not is_virtual(pod))
