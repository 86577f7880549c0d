"""``karpenter explain pod NAME``: where a pod would go and why there, or what keeps it waiting and what would have to change.
``karpenter explain node NAME``: everything that keeps a node, or what takes it and what that saves.

Made from the very plan the controller would make, so the answer holds for the pod among all others. Nothing is changed anywhere.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from karpenter.cli import cluster_objects, planning, planning_options, render_common, terminal
from karpenter.scheduling.objective import COST_PER_INTERRUPTION, DEFAULT_EXPOSURE, NODE_FEE_PER_HOUR

if TYPE_CHECKING:
    from karpenter.api.core import Pod
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.cli.render_common import Json
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.scheduling.scheduling_options import SchedulingOptions

Output = Literal["text", "table", "json", "yaml"]
_SUGGESTED_NAMES = 3


def explain(
    kind: Annotated[
        Literal["pod", "node"], typer.Argument(metavar="pod|node", help="What to explain: a pod, or a node.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; of a node also that of its NodeClaim.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="The namespace of a pod.")] = "default",
    filename: planning_options.FilesOption = None,
    instance_types: planning_options.InstanceTypesOption = "",
    output: Annotated[
        Output, typer.Option("-o", "--output", help="What to print; text and table are the same.")
    ] = "text",
    skip_invalid: planning_options.SkipInvalidOption = False,
    preference_policy: planning_options.PreferencePolicyOption = "Respect",
    min_values_policy: planning_options.MinValuesPolicyOption = "Strict",
    scheduler_config: planning_options.SchedulerConfigOption = "",
    node_fee: planning_options.NodeFeeOption = NODE_FEE_PER_HOUR,
    exposure: planning_options.ExposureOption = DEFAULT_EXPOSURE,
    interruption_cost: planning_options.InterruptionCostOption = COST_PER_INTERRUPTION,
    feature_gates: planning_options.FeatureGatesOption = "",
) -> None:
    """Say where a pod would go or why it waits, or what keeps a node and what would take it. Changes nothing."""

    worth = planning_options.parse_valuation(node_fee, exposure, interruption_cost)
    options = planning_options.parse_scheduling_options(preference_policy, min_values_policy, scheduler_config, worth)
    with planning.gc_disabled():
        further = cluster_objects.FREEZE_KINDS if kind == "node" else ()
        ground = planning.load_plan_input(filename, instance_types, options, further, skip_invalid=skip_invalid)
        if kind == "node":
            _explain_node(ground, name, planning_options.parse_disruption_options(options, feature_gates), output)
        else:
            _explain_pod(ground, namespace, name, options, output)


def _explain_pod(
    plan_input: planning.PlanInput, namespace: str, name: str, options: SchedulingOptions, output: Output
) -> None:
    from karpenter.cli import render_pod

    pod = _find_pod(plan_input.objects, namespace, name)
    plan = planning.compute_plan(plan_input.objects, plan_input.catalog.index, options).solution
    found = render_pod.explain_pod(pod, plan)
    _write(lambda: render_pod.document(found), lambda out: render_pod.write(found, out), output)


def _explain_node(plan_input: planning.PlanInput, name: str, options: DisruptionOptions, output: Output) -> None:
    from karpenter.cli import render_node
    from karpenter.disruption.decide.node_explanation import explain_node

    _require_node(plan_input.objects, name)
    seen = planning.compute_disruption_preview(plan_input, options)
    views = [view for view in seen.snapshot.nodes if name in (view.name, view.key)]
    if not views:
        terminal.exit_with_error(f"node {name} cannot be judged: it is left out, see above", terminal.WRONG_INPUT)
    found = explain_node(views[0], seen, planning.type_indexes(plan_input))
    _write(lambda: render_node.document(found, seen), lambda out: render_node.write(found, seen, out), output)


def _require_node(objects: ClusterObjects, name: str) -> None:
    """End the command where there is neither a Node nor a NodeClaim of that name, with names that are nearly the same."""
    nodes = {node.metadata.name for node in objects.nodes}
    names = sorted(nodes | {claim.metadata.name for claim in objects.claims})
    if name in names:
        return
    where = "cluster" if objects.from_cluster else "input"
    near = difflib.get_close_matches(name, names, _SUGGESTED_NAMES) or names[:_SUGGESTED_NAMES]
    hint = f"; did you mean {' or '.join(near)}?" if near else "; there is none at all"
    terminal.exit_with_error(f"no Node or NodeClaim {name} in the {where}{hint}", terminal.WRONG_INPUT)


def _find_pod(objects: ClusterObjects, namespace: str, name: str) -> Pod:
    named = [pod for pod in objects.pods if pod.metadata.name == name]
    for pod in named:
        if pod.metadata.namespace == namespace:
            return pod
    where = "cluster" if objects.from_cluster else "input"
    hint = _hint([pod.metadata.namespace for pod in named])
    return terminal.exit_with_error(f"no pod {namespace}/{name} in the {where}{hint}", terminal.WRONG_INPUT)


def _hint(namespaces: Sequence[str]) -> str:
    if not namespaces:
        return ""
    shown = ", ".join(f"-n {namespace}" for namespace in sorted(namespaces)[:_SUGGESTED_NAMES])
    return f"; there is one of that name with {shown}"


def _write(document: Callable[[], Json], page: Callable[[TextIO], None], output: Output) -> None:
    from karpenter.cli.terminal import exit_on_closed_pipe, write_text

    if output in ("text", "table"):
        with exit_on_closed_pipe():
            page(sys.stdout)
    else:
        write_text(render_common.to_json(document()) if output == "json" else render_common.to_yaml(document()))
