"""``karpenter wake`` and ``karpenter sleep``: overrule the CapacitySchedules of NodePools for a while.

They write the annotations of ``capacityschedule.sleep_overrides``, which can be written with kubectl as well.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import terminal
from karpenter.cli.freeze_command import DryRunOption, end_of, print_lines, require_pools
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.kube.protocol import Json, Kube

PoolsArgument = Annotated[list[str], typer.Argument(metavar="POOL...", help="Names of NodePools.")]
DurationOption = Annotated[str, typer.Option("--for", metavar="DURATION", help="Duration, such as 2h.")]
UntilOption = Annotated[
    str, typer.Option(metavar="TIME", help="End time with UTC offset, such as 2026-12-24T00:00:00+01:00.")
]


@with_setting_options(CONNECTION_SETTINGS)
def wake(
    *,
    flags: Flags,
    pools: PoolsArgument,
    duration: DurationOption = "",
    until: UntilOption = "",
    reason: Annotated[str, typer.Option(help="Reason, shown in the event of the NodePool.")] = "",
    dry_run: DryRunOption = "none",
) -> None:
    """Wake NodePools that sleep by a CapacitySchedule, or keep them awake, for a while. Ends an earlier karpenter sleep.

    Needs the feature gate CapacitySchedule.
    """
    from karpenter.cli.cluster_reader import change_cluster

    settings = resolve_or_exit("wake", flags)
    end = _required_end(duration, until)
    print_lines(change_cluster(settings, dry_run, lambda kube: wake_pools(kube, pools, end, reason)), dry_run)


@with_setting_options(CONNECTION_SETTINGS)
def sleep(
    *,
    flags: Flags,
    pools: PoolsArgument,
    duration: DurationOption = "",
    until: UntilOption = "",
    dry_run: DryRunOption = "none",
) -> None:
    """Send NodePools to sleep for a while: they launch nothing, and their nodes are drained within budgets.

    Needs the feature gate CapacitySchedule, and no CapacitySchedule. Ends an earlier karpenter wake.
    """
    from karpenter.cli.cluster_reader import change_cluster

    settings = resolve_or_exit("sleep", flags)
    end = _required_end(duration, until)
    print_lines(change_cluster(settings, dry_run, lambda kube: send_pools_to_sleep(kube, pools, end)), dry_run)


def _required_end(duration: str, until: str) -> datetime:
    end = end_of(duration, until)
    if end is None:
        terminal.exit_with_error("give --for DURATION or --until TIME", terminal.WRONG_INPUT)
    return end


async def wake_pools(kube: Kube, pools: list[str], end: datetime, reason: str) -> list[str]:
    """Keep the pools awake until ``end``; a line for each.

    Raises ``KubeError``, and before any write ``WrongInput``, or ``CommandError`` where the controller would not read it.
    """
    from karpenter.model import clock, labels

    until = clock.rfc3339(end)
    notes: dict[str, Json] = {
        labels.KEEP_AWAKE_UNTIL: until,
        labels.KEEP_AWAKE_REASON: reason or None,
        labels.ASLEEP_UNTIL: None,
    }
    await _annotate(kube, pools, notes)
    return [f"NodePool {name} is kept awake until {until}" for name in pools]


async def send_pools_to_sleep(kube: Kube, pools: list[str], end: datetime) -> list[str]:
    """Send the pools to sleep until ``end``; raises as ``wake_pools``."""
    from karpenter.model import clock, labels

    until = clock.rfc3339(end)
    notes: dict[str, Json] = {
        labels.ASLEEP_UNTIL: until,
        labels.KEEP_AWAKE_UNTIL: None,
        labels.KEEP_AWAKE_REASON: None,
    }
    await _annotate(kube, pools, notes)
    return [f"NodePool {name} is sent to sleep until {until}" for name in pools]


async def _annotate(kube: Kube, pools: list[str], notes: dict[str, Json]) -> None:
    from karpenter.api.kinds import NODE_POOL
    from karpenter.cli.controller_gates import require_gate
    from karpenter.model.feature_gates import FeatureGate

    await require_pools(kube, pools)
    await require_gate(kube, FeatureGate.CAPACITY_SCHEDULE)
    for name in pools:
        await kube.patch(NODE_POOL, name, {"metadata": {"annotations": notes}})
