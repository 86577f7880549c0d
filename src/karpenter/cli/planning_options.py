"""Options of commands that plan, and how their values are read."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import typer

from karpenter.cli.terminal import WRONG_INPUT, exit_with_error
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.scheduling_options import SchedulingOptions

FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--filename",
        metavar="FILE",
        help="YAML or JSON with objects, a directory of such files, or - for standard input; may be repeated. "
        "Default: the cluster of the kubeconfig.",
    ),
]
InstanceTypesOption = Annotated[
    str,
    typer.Option(
        "--instance-types",
        "--instance-types-file-path",
        metavar="FILE",
        envvar="INSTANCE_TYPES_FILE_PATH",
        help="Instance types to choose from. Default: the packaged EC2 types with us-east-1 prices.",
    ),
]
SkipInvalidOption = Annotated[bool, typer.Option("--skip-invalid", help="Ignore invalid objects instead of failing.")]
PreferencePolicyOption = Annotated[
    Literal["Respect", "Ignore"],
    typer.Option(
        envvar="PREFERENCE_POLICY",
        help="Respect: treat preferred affinities and ScheduleAnyway constraints as required where possible; "
        "Ignore: drop them.",
    ),
]
MinValuesPolicyOption = Annotated[
    Literal["Strict", "BestEffort"],
    typer.Option(envvar="MIN_VALUES_POLICY", help="BestEffort lowers minValues that cannot be met."),
]
SchedulerConfigOption = Annotated[
    str,
    typer.Option(
        envvar="SCHEDULER_CONFIG",
        help="Default topology spread constraints of the cluster's scheduler "
        "(PodTopologySpread defaultConstraints), as YAML or JSON.",
    ),
]
NodeFeeOption = Annotated[
    float,
    typer.Option(
        envvar="NODE_FEE",
        min=0.0,
        metavar="USD",
        help="Fixed cost added per node when plans are compared, in USD per hour.",
    ),
]
ExposureOption = Annotated[
    str,
    typer.Option(
        envvar="EXPOSURE",
        metavar="SHARE",
        help="Largest share of a workload on one new node, and of a NodePool's spot nodes in one instance type and zone: "
        "above 0 and up to 1, or off. A soft constraint.",
    ),
]
InterruptionCostOption = Annotated[
    float,
    typer.Option(
        envvar="INTERRUPTION_COST",
        min=0.0,
        metavar="USD",
        help="Cost of one spot interruption in USD; applies where interruption rates are known.",
    ),
]

FeatureGatesOption = Annotated[
    str,
    typer.Option(
        envvar="FEATURE_GATES",
        metavar="GATE=true,...",
        help="Feature gates as for the controller; SpotToSpotConsolidation applies here.",
    ),
]


def parse_valuation(node_fee: float, exposure: str, interruption_cost: float) -> Objective:
    """How plans are valued, as users write it. Ends the command where one is no amount or the exposure no share."""
    from karpenter.model.shares import ShareError, parse_share
    from karpenter.scheduling.objective import ExposureLimits, Objective

    for flag, amount in (("--node-fee", node_fee), ("--interruption-cost", interruption_cost)):
        if not math.isfinite(amount):
            exit_with_error(f"{flag}: {amount} is not an amount of USD such as 0.005", WRONG_INPUT)
    try:
        share = parse_share(exposure)
    except ShareError as error:
        exit_with_error(f"--exposure: {error}", WRONG_INPUT)
    return Objective(node_fee, interruption_cost, ExposureLimits.uniform(share))


def parse_scheduling_options(
    preferences: str, min_values: str, scheduler_config: str, worth: Objective
) -> SchedulingOptions:
    """The decision's settings, as users write them. Ends the command where the scheduler's configuration is wrong."""
    from karpenter.runtime.scheduler_config import SchedulerConfigError, parse_scheduler_config
    from karpenter.scheduling.scheduling_options import MinValuesPolicy, PreferencePolicy, SchedulingOptions

    try:
        spread = parse_scheduler_config(scheduler_config).default_constraints
    except SchedulerConfigError as error:
        exit_with_error(f"--scheduler-config: {error}", WRONG_INPUT)
    return SchedulingOptions(
        PreferencePolicy(preferences), MinValuesPolicy(min_values), default_spread=spread, objective=worth
    )


def parse_disruption_options(options: SchedulingOptions, feature_gates: str) -> DisruptionOptions:
    """Those of provisioning with the gates, as users write them. Ends the command where these cannot be read."""
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.model.feature_gates import FeatureGate
    from karpenter.runtime import feature_gate_flags

    try:
        found = feature_gate_flags.parse_feature_gates(feature_gates)
    except feature_gate_flags.FeatureGateError as error:
        exit_with_error(f"--feature-gates: {error}", WRONG_INPUT)
    return DisruptionOptions(options, FeatureGate.SPOT_TO_SPOT_CONSOLIDATION in found.enabled)
