"""``karpenter plan``: what would be bought for these objects, or for the pods waiting in the cluster now.

The same decision the controller takes, without carrying it out. Nothing is changed anywhere.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from karpenter.api.core import TopologySpreadConstraint
    from karpenter.api.kinds import Kind
    from karpenter.api.meta import Wire
    from karpenter.catalog.index import TypeIndex
    from karpenter.cli.inputs import Objects
    from karpenter.cli.render import Report
    from karpenter.cluster import ClusterState
    from karpenter.decide.plan import Plan
    from karpenter.decide.provision import Options

_IMPORTED_AT = time.perf_counter()
_CLOCK_TICK_FIELD = 19

#: Exit codes: what was given is wrong; the cluster did not answer as it should.
WRONG_INPUT = 2
NO_ANSWER = 1

Output = Literal["table", "json", "yaml"]
Preferences = Literal["Respect", "Ignore"]
MinValues = Literal["Strict", "BestEffort"]


def plan(
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--filename",
            metavar="FILE",
            help="YAML or JSON with objects, a directory of such files, or - for standard input; may be repeated. "
            "Without it: the cluster of the kubeconfig.",
        ),
    ] = None,
    instance_types: Annotated[
        str,
        typer.Option(
            "--instance-types",
            "--instance-types-file-path",
            metavar="FILE",
            envvar="INSTANCE_TYPES_FILE_PATH",
            help="Instance types to choose from; without it the packaged EC2 types with prices of us-east-1.",
        ),
    ] = "",
    output: Annotated[Output, typer.Option("-o", "--output", help="What to print.")] = "table",
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Plan without the objects that are wrong instead of refusing.")
    ] = False,
    preference_policy: Annotated[
        Preferences, typer.Option(envvar="PREFERENCE_POLICY", help="Whether to honour what pods prefer.")
    ] = "Respect",
    min_values_policy: Annotated[
        MinValues, typer.Option(envvar="MIN_VALUES_POLICY", help="Whether minValues may be lowered when out of reach.")
    ] = "Strict",
    scheduler_config: Annotated[
        str,
        typer.Option(
            envvar="SCHEDULER_CONFIG",
            help="Spread constraints that the cluster's scheduler gives pods without any, as YAML or JSON.",
        ),
    ] = "",
) -> None:
    """Say which machines would be bought for the pods that wait, and what they cost. Changes nothing."""
    from karpenter.decide.explain import skip_message
    from karpenter.decide.provision import MinValuesPolicy, Options, PreferencePolicy

    spread = _default_spread(scheduler_config)
    options = Options(PreferencePolicy(preference_policy), MinValuesPolicy(min_values_policy), spread)
    with _uncollected():
        catalogue = _catalogue(instance_types)
        further = _workloads() if spread else ()
        objects = _from_files(filename, catalogue.index, further) if filename else _from_cluster(further)
        _complain(objects, skip_invalid=skip_invalid)
        found, seconds = _decided(objects, catalogue.index, options)
        for skipped in found.skipped_pools:
            _say(f"NodePool {skipped.node_pool} takes no part: {skip_message(skipped)}")
        _write(_report(found, catalogue, seconds), output)


@dataclass(frozen=True, slots=True)
class _Catalogue:
    index: TypeIndex
    seconds: float


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: the process is short, and what it decodes lives until its end."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _catalogue(path: str) -> _Catalogue:
    from karpenter.catalog import ec2, file
    from karpenter.catalog.index import TypeIndex, well_known_of
    from karpenter.model import labels

    begun = time.perf_counter()
    try:
        types = file.load(path) if path else ec2.types()
    except file.FileError as error:
        _stop(str(error), WRONG_INPUT)
    index = TypeIndex(types, well_known_of(types) | labels.WELL_KNOWN)
    return _Catalogue(index, time.perf_counter() - begun)


def _default_spread(text: str) -> tuple[TopologySpreadConstraint, ...]:
    from karpenter.control.scheduler_config import SchedulerConfigError, parse

    try:
        return parse(text).default_constraints
    except SchedulerConfigError as error:
        _stop(f"--scheduler-config: {error}", WRONG_INPUT)


def _workloads() -> tuple[Kind[Wire], ...]:
    """The kinds that only default constraints need."""
    from karpenter.cli.inputs import WORKLOADS

    return WORKLOADS


def _from_files(paths: list[str], index: TypeIndex, further: Iterable[Kind[Wire]]) -> Objects:
    from karpenter.cli.inputs import read

    return read(paths, index.well_known, further)


def _from_cluster(further: Iterable[Kind[Wire]]) -> Objects:
    from karpenter.cli.live import Unanswered, read

    try:
        return read(further)
    except Unanswered as error:
        _stop(str(error), NO_ANSWER)


def _complain(objects: Objects, *, skip_invalid: bool) -> None:
    """Say what is wrong with the input; where it may not be left out, stop."""
    for line in objects.problems:
        _say(line)
    if objects.problems and not skip_invalid and not objects.live:
        raise typer.Exit(WRONG_INPUT)
    if objects.skipped:
        total = sum(objects.skipped.values())
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(objects.skipped.items()))
        _say(f"skipped {total} object{'' if total == 1 else 's'} of kinds a plan has no use for: {kinds}")
    if not objects.pools:
        where = "cluster" if objects.live else "input"
        _say(f"no NodePool in the {where}: without one nothing can be bought; add a NodePool")


def _decided(objects: Objects, index: TypeIndex, options: Options) -> tuple[Plan, float]:
    from datetime import UTC, datetime

    from karpenter.decide.provision import provision

    begun = time.perf_counter()
    state = _state(objects)
    indexes = {pool.metadata.name: index for pool in objects.pools}
    found = provision(state.snapshot(), indexes, datetime.now(UTC), options)
    return found, time.perf_counter() - begun


def _state(objects: Objects) -> ClusterState:
    from karpenter.cluster import ClusterState

    state = ClusterState(lambda kind, name, why: _say(f"{kind} {name} is left out: {why}"))
    for pool in objects.pools:
        state.set_pool(pool)
    for claim in objects.claims:
        state.set_claim(claim)
    for node in objects.nodes:
        state.set_node(node)
    for daemon_set in objects.daemon_sets:
        state.set_daemon_set(daemon_set)
    for budget in objects.budgets:
        state.set_budget(budget)
    for namespace in objects.namespaces:
        state.set_namespace(namespace)
    _add_storage(state, objects)
    for service in objects.services:
        state.workloads.set_service(service)
    for owner in objects.owners:
        state.workloads.set_owner(owner)
    for pod in objects.pods:
        state.set_pod(pod)
    return state


def _add_storage(state: ClusterState, objects: Objects) -> None:
    for claim in objects.volume_claims:
        state.set_volume_claim(claim)
    for volume in objects.volumes:
        state.set_volume(volume)
    for storage_class in objects.storage_classes:
        state.set_storage_class(storage_class)
    for csi_node in objects.csi_nodes:
        state.set_csi_node(csi_node)


def _report(found: Plan, catalogue: _Catalogue, decision_seconds: float) -> Report:
    from karpenter.cli.render import Report, Timing

    return Report(found, catalogue.index, Timing(decision_seconds, catalogue.seconds, _wall_seconds()))


def _write(report: Report, output: Output) -> None:
    from karpenter.cli.output import emit, to_whoever_reads

    if output == "table":
        from karpenter.cli.render_table import write

        with to_whoever_reads():
            write(report, sys.stdout)
    else:
        from karpenter.cli import render

        emit(render.as_json(report) if output == "json" else render.as_yaml(report))


def _wall_seconds() -> float:
    """Seconds since the process started, as the kernel counts; where it does not tell, since this module was imported."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        started = int(fields[_CLOCK_TICK_FIELD]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.perf_counter() - _IMPORTED_AT


def _say(line: str) -> None:
    """One line beside the output."""
    print(line, file=sys.stderr)  # noqa: T201


def _stop(line: str, code: int) -> NoReturn:
    _say(line)
    raise typer.Exit(code)
