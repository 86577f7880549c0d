"""Pods of a what-if question that get no place, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.scheduling.demand import Packing
from karpenter.scheduling.pass_result import PassResult, UnschedulableGroup
from karpenter.scheduling.solution import UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import NoRoom, UnschedulableReason


def unschedulable_of(failed: UnschedulableGroup) -> Iterator[UnschedulablePod]:
    """Pods without a place, with the constraint that left none as the reason, if it was one."""
    reason = UnschedulableReason(failed.blocked or NoRoom())
    return (UnschedulablePod(pod, (reason,)) for pod in failed.pods)


def unpacked_pods(result: PassResult, packing: Packing) -> Iterator[UnschedulablePod]:
    """Pods that limits leave without a new node."""
    reasons = (UnschedulableReason(NoRoom()),)
    for position, count in packing.unpacked.items():
        yield from (UnschedulablePod(pod, reasons) for pod in result.demands[position].last_pods(count))
