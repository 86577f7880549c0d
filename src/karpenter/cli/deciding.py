"""What commands that decide have in common: their options, where they read objects, and the decision itself."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from karpenter.api.kinds import Kind
    from karpenter.api.meta import Wire
    from karpenter.catalog.index import TypeIndex
    from karpenter.cli.inputs import Objects
    from karpenter.cluster import ClusterState
    from karpenter.decide.disrupt import DisruptionOptions
    from karpenter.decide.disrupt.outlook import Outlook
    from karpenter.decide.plan import Plan
    from karpenter.decide.provision import Options
    from karpenter.decide.worth import Worth
    from karpenter.model.freezes import Freeze

#: Exit codes: what was given is wrong; the cluster did not answer as it should.
WRONG_INPUT = 2
NO_ANSWER = 1

Files = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--filename",
        metavar="FILE",
        help="YAML or JSON with objects, a directory of such files, or - for standard input; may be repeated. "
        "Without it: the cluster of the kubeconfig.",
    ),
]
InstanceTypes = Annotated[
    str,
    typer.Option(
        "--instance-types",
        "--instance-types-file-path",
        metavar="FILE",
        envvar="INSTANCE_TYPES_FILE_PATH",
        help="Instance types to choose from; without it the packaged EC2 types with prices of us-east-1.",
    ),
]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Plan without the objects that are wrong instead of refusing.")
]
PreferencePolicy = Annotated[
    Literal["Respect", "Ignore"],
    typer.Option(envvar="PREFERENCE_POLICY", help="Whether to honour what pods prefer."),
]
MinValuesPolicy = Annotated[
    Literal["Strict", "BestEffort"],
    typer.Option(envvar="MIN_VALUES_POLICY", help="Whether minValues may be lowered when out of reach."),
]
SchedulerConfig = Annotated[
    str,
    typer.Option(
        envvar="SCHEDULER_CONFIG",
        help="Spread constraints that the cluster's scheduler gives pods without any, as YAML or JSON.",
    ),
]
NodeFee = Annotated[
    float,
    typer.Option(
        envvar="NODE_FEE",
        min=0.0,
        metavar="USD",
        help="What a machine counts beside its price when plans are compared, in USD per hour.",
    ),
]
Exposure = Annotated[
    str,
    typer.Option(
        envvar="EXPOSURE",
        metavar="SHARE",
        help="How much of a workload may be on one new machine, and of a NodePool's spot machines in one type and zone: "
        "a number above 0 and up to 1, or off. A wish that gives way.",
    ),
]
InterruptionCost = Annotated[
    float,
    typer.Option(
        envvar="INTERRUPTION_COST",
        min=0.0,
        metavar="USD",
        help="What one interruption of a spot machine costs, where instance types say how often they are interrupted.",
    ),
]

FeatureGates = Annotated[
    str,
    typer.Option(
        envvar="FEATURE_GATES",
        metavar="GATE=true,...",
        help="Gates as the controller has them; of these SpotToSpotConsolidation decides whether spot machines are replaced.",
    ),
]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Instance types ready to choose from, and how long that took."""

    index: TypeIndex
    seconds: float


@dataclass(frozen=True, slots=True)
class Ground:
    """What a decision is made on."""

    catalogue: Catalogue
    objects: Objects


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: the process is short, and what it decodes lives until its end."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def catalogue(path: str) -> Catalogue:
    """The instance types of a file, or the packaged ones. Ends the command where the file is wrong."""
    from karpenter.catalog import ec2, file
    from karpenter.catalog.index import TypeIndex, well_known_of
    from karpenter.model import labels

    begun = time.perf_counter()
    try:
        types = file.load(path) if path else ec2.types()
    except file.FileError as error:
        stop(str(error), WRONG_INPUT)
    index = TypeIndex(types, well_known_of(types) | labels.WELL_KNOWN)
    return Catalogue(index, time.perf_counter() - begun)


def objects(
    paths: list[str] | None, index: TypeIndex, options: Options, further: tuple[Kind[Wire], ...] = ()
) -> Objects:
    """What the files hold, or without any the cluster of the kubeconfig; ``further`` kinds besides what a plan needs."""
    from karpenter.cli import inputs

    further += inputs.WORKLOADS if options.default_spread else ()  # only default constraints need these
    return inputs.read(paths, index.well_known, further) if paths else _from_cluster(further)


def _from_cluster(further: Iterable[Kind[Wire]]) -> Objects:
    from karpenter.cli.live import Unanswered, read

    try:
        return read(further)
    except Unanswered as error:
        stop(str(error), NO_ANSWER)


def ready(
    filename: list[str] | None,
    instance_types: str,
    options: Options,
    further: tuple[Kind[Wire], ...] = (),
    *,
    skip_invalid: bool,
) -> Ground:
    """What to decide on, from files or the cluster. Says what is wrong with it, and ends the command where that may not be."""
    types = catalogue(instance_types)
    found = objects(filename, types.index, options, further)
    complain(found, skip_invalid=skip_invalid)
    return Ground(types, found)


def complain(found: Objects, *, skip_invalid: bool) -> None:
    """Say what is wrong with the input; where it may not be left out, stop."""
    refuse(found, skip_invalid=skip_invalid)
    if found.skipped:
        total = sum(found.skipped.values())
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(found.skipped.items()))
        say(f"skipped {total} object{'' if total == 1 else 's'} of kinds a plan has no use for: {kinds}")
    if not found.pools:
        where = "cluster" if found.live else "input"
        say(f"no NodePool in the {where}: without one nothing can be bought; add a NodePool")


def refuse(found: Objects, *, skip_invalid: bool) -> None:
    """Say which objects cannot be used; where they may not be left out, stop."""
    for line in found.problems:
        say(line)
    if found.problems and not skip_invalid and not found.live:
        raise typer.Exit(WRONG_INPUT)


def decided(found: Objects, index: TypeIndex, options: Options) -> tuple[Plan, float]:
    """The plan for the objects, and the seconds it took to decide."""
    from datetime import UTC, datetime

    from karpenter.decide.provision import prepare, provision

    prepare()
    begun = time.perf_counter()
    state = state_of(found)
    indexes = {pool.metadata.name: index for pool in found.pools}
    plan = provision(state.snapshot(), indexes, datetime.now(UTC), options)
    return plan, time.perf_counter() - begun


def looked_ahead(ground: Ground, options: DisruptionOptions) -> Outlook:
    """Which machines would go now, and which if budgets forbade nothing."""
    from datetime import UTC, datetime

    from karpenter.decide.disrupt.outlook import outlook
    from karpenter.decide.provision import prepare

    prepare()
    snapshot = state_of(ground.objects).snapshot()
    return outlook(snapshot, indexes_of(ground), datetime.now(UTC), options)


def indexes_of(ground: Ground) -> Mapping[str, TypeIndex]:
    """The types each NodePool chooses from."""
    return {pool.metadata.name: ground.catalogue.index for pool in ground.objects.pools}


def state_of(objects: Objects) -> ClusterState:
    """The picture the objects make."""
    from karpenter.cluster import ClusterState

    state = ClusterState(lambda kind, name, why: say(f"{kind} {name} is left out: {why}"))
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
    state.freeze = freeze_over(objects)
    _add_storage(state, objects)
    for service in objects.services:
        state.workloads.set_service(service)
    for owner in objects.owners:
        state.workloads.set_owner(owner)
    for pod in objects.pods:
        state.set_pod(pod)
    return state


def freeze_over(objects: Objects) -> Freeze | None:
    """The freeze over the whole cluster, if there is one among the objects."""
    from karpenter.model import freezes

    for item in objects.config_maps:
        if (item.metadata.namespace, item.metadata.name) == (freezes.NAMESPACE, freezes.NAME):
            return freezes.of_config_map(item)
    return None


def _add_storage(state: ClusterState, objects: Objects) -> None:
    for claim in objects.volume_claims:
        state.set_volume_claim(claim)
    for volume in objects.volumes:
        state.set_volume(volume)
    for storage_class in objects.storage_classes:
        state.set_storage_class(storage_class)
    for csi_node in objects.csi_nodes:
        state.set_csi_node(csi_node)


def worth_of(node_fee: float, exposure: str, interruption_cost: float) -> Worth:
    """How plans are valued, as users write it. Ends the command where one is no amount or the exposure no share."""
    from karpenter.decide.worth import Exposure, Worth
    from karpenter.model.shares import ShareError, parse_share

    for flag, amount in (("--node-fee", node_fee), ("--interruption-cost", interruption_cost)):
        if not math.isfinite(amount):
            stop(f"{flag}: {amount} is not an amount of USD such as 0.005", WRONG_INPUT)
    try:
        share = parse_share(exposure)
    except ShareError as error:
        stop(f"--exposure: {error}", WRONG_INPUT)
    return Worth(node_fee, interruption_cost, Exposure.of(share))


def options_of(preferences: str, min_values: str, scheduler_config: str, worth: Worth) -> Options:
    """The decision's settings, as users write them. Ends the command where the scheduler's configuration is wrong."""
    from karpenter.control.scheduler_config import SchedulerConfigError, parse
    from karpenter.decide.provision import MinValuesPolicy, Options, PreferencePolicy

    try:
        spread = parse(scheduler_config).default_constraints
    except SchedulerConfigError as error:
        stop(f"--scheduler-config: {error}", WRONG_INPUT)
    return Options(PreferencePolicy(preferences), MinValuesPolicy(min_values), default_spread=spread, worth=worth)


def disruption_options_of(options: Options, feature_gates: str) -> DisruptionOptions:
    """Those of provisioning with the gates, as users write them. Ends the command where these cannot be read."""
    from karpenter.control import gates
    from karpenter.decide.disrupt import DisruptionOptions
    from karpenter.model.gates import Gate

    try:
        found = gates.parse(feature_gates)
    except gates.GateError as error:
        stop(f"--feature-gates: {error}", WRONG_INPUT)
    return DisruptionOptions(options, Gate.SPOT_TO_SPOT_CONSOLIDATION in found.enabled)


def say_skipped(plan: Plan) -> None:
    """Which pools take no part, and why."""
    from karpenter.decide.explain import skip_message

    for skipped in plan.skipped_pools:
        say(f"NodePool {skipped.node_pool} takes no part: {skip_message(skipped)}")


def say(line: str) -> None:
    """One line beside the output."""
    print(line, file=sys.stderr)  # noqa: T201


def stop(line: str, code: int) -> NoReturn:
    """End the command with a line about why."""
    say(line)
    raise typer.Exit(code)
