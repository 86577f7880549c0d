"""``karpenter top``: a live view of the nodes of any cluster, of what they cost, and of pods that wait. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import cluster_objects, planning_options
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.cli.planning_options import InputOptions
    from karpenter.cli.top_app import ViewerSetup
    from karpenter.console.viewer_source import ViewerSource
    from karpenter.settings import Settings


_SelectorOption = Annotated[
    str | None, typer.Option(metavar="SELECTOR", help="Only nodes with these labels, such as karpenter.sh/nodepool.")
]
_SortOption = Annotated[
    str | None,
    typer.Option(metavar="LABEL=asc|dsc", help="Order of nodes: creation or a label. Default: creation=dsc."),
]
_ResourcesOption = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Resources with bars, comma-separated. Default: cpu,memory.")
]
_LabelsOption = Annotated[
    str | None, typer.Option(metavar="LABELS", help="Labels with a column of their own, comma-separated.")
]
_StyleOption = Annotated[
    str | None, typer.Option(metavar="GOOD,FAIR,BAD", help="Colors of bars, such as #04b575,#d7af00,#ff5f5f.")
]


@with_setting_options(PLANNING_SETTINGS)
def top(
    *,
    flags: Flags,
    filename: planning_options.FilesOption = None,
    recursive: planning_options.RecursiveOption = False,
    region: planning_options.RegionOption = "",
    node_selector: _SelectorOption = None,
    node_sort: _SortOption = None,
    resources: _ResourcesOption = None,
    extra_labels: _LabelsOption = None,
    disable_pricing: Annotated[bool, typer.Option("--disable-pricing", help="Show no prices.")] = False,
    style: _StyleOption = None,
    history: planning_options.HistoryOption = None,
    controller: planning_options.ControllerOption = "",
    controller_token_file: planning_options.ControllerTokenOption = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the screen to an SVG file, and end.")] = None,
) -> None:
    """Watch nodes, pods that wait, decisions, NodePools, spending and events of a cluster.

    Read-only. Works on clusters that Karpenter manages as well. Options and ~/.eks-node-viewer are those of eks-node-viewer.
    """
    from karpenter.cli.top_app import ViewerSetup
    from karpenter.cli.top_history import history_source
    from karpenter.cli.top_options import DEFAULTS_FILE, viewer_options

    recorded = history_source(history, controller, controller_token_file)
    settings = resolve_or_exit("top", flags, filename)
    options = viewer_options(
        {
            "node-selector": node_selector,
            "node-sort": node_sort,
            "resources": resources,
            "extra-labels": extra_labels,
            "disable-pricing": "true" if disable_pricing else None,
            "style": style,
        },
        Path.home() / DEFAULTS_FILE,
    )
    input_options = planning_options.InputOptions(filename, "current", region, recursive=recursive)
    source = viewer_source(input_options, settings)
    show(ViewerSetup(source, options, planning_options.disruption_options(settings), recorded), svg)


def viewer_source(input_options: InputOptions, settings: Settings) -> ViewerSource:
    """The objects of files, without any those of the kubeconfig's cluster. Raises ``CommandError``; may end the command."""
    return (
        _recorded_source(input_options, settings)
        if input_options.filename
        else _cluster_source(input_options, settings)
    )


def show(setup: ViewerSetup, svg: Path | None) -> None:
    """Show the cluster until the user quits; with a file, only once and into it. Raises ``CommandError``."""
    from karpenter.cli import top_run

    with top_run.silent_logs():
        if svg is not None:
            top_run.write_svg(setup, svg)
        else:
            top_run.run_viewer(setup)


def _recorded_source(input_options: InputOptions, settings: Settings) -> ViewerSource:
    """The objects of files."""
    from dataclasses import replace
    from datetime import UTC, datetime

    from karpenter.api import kinds
    from karpenter.cli import planning
    from karpenter.cli.sleeping_pools import annotated_objects, current_sleep
    from karpenter.cli.top_source import RecordedSource
    from karpenter.console.console_input import ConsoleInput

    extra = (*cluster_objects.FREEZE_KINDS, kinds.EVENT)
    loaded = planning.load_plan_input(input_options, settings, extra)  # type: ignore[arg-type]
    objects = loaded.objects
    snapshot = planning.cluster_state(objects).snapshot()
    faults = ""
    if loaded.at is not None:
        sleep = current_sleep(objects.schedules, settings.gates, annotated_objects(objects), loaded.at)
        snapshot = replace(snapshot, sleeping_pools=sleep.pools)
        faults = "; ".join(map(str, sleep.unusable))
    given = ConsoleInput(
        snapshot, datetime.now(UTC), objects.pods, objects.nodes, objects.events, loaded.instance_types.indexes
    )
    return RecordedSource(", ".join(input_options.filename or ()), given, faults)


def _cluster_source(input_options: InputOptions, settings: Settings) -> ViewerSource:
    """The cluster of the kubeconfig. Raises ``ClusterUnreachable`` before the screen is taken."""
    from karpenter.cli.top_cluster import connect

    return connect(input_options, settings)
