"""``karpenter explain pod NAME``: where a pod would be scheduled, or why it is unschedulable and what would have to change.
``karpenter explain node NAME``: what blocks the disruption of a node, or the command that disrupts it and what that saves.

Both use the plan the controller would make, so the answer holds for the pod among all others. Read-only.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import cluster_objects, explain_subjects, planning, planning_options, terminal
from karpenter.cli.output_formats import Output, OutputOption, Printable, node_name, write_output
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.api.core import Pod
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.cli.render_pod import PodExplanation
    from karpenter.disruption.decide.disruption_preview import DisruptionPreview
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.disruption.decide.node_explanation import NodeExplanation
    from karpenter.scheduling.scheduling_options import SchedulingOptions
    from karpenter.scheduling.solution import Solution

_DEFAULT_NAMESPACE = "default"
_SUGGESTED_NAMES = 3


@with_setting_options(PLANNING_SETTINGS)
def explain(
    *,
    flags: Flags,
    subject: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND NAME | KIND/NAME",
            help="What to explain: a pod, a node or its NodeClaim, or a workload such as deployment/web. The name of a pod or "
            "workload may be NAMESPACE/NAME.",
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n", "--namespace", metavar="NAMESPACE", help="Namespace of the pod or workload. Default: default."
        ),
    ] = None,
    filename: planning_options.FilesOption = None,
    output: OutputOption = "table",
    recursive: planning_options.RecursiveOption = False,
    replicas: planning_options.ReplicasOption = "current",
    region: planning_options.RegionOption = "",
    live_prices: planning_options.LivePricesOption = False,
    skip_invalid: planning_options.SkipInvalidOption = False,
    verbose: planning_options.VerboseOption = False,
) -> None:
    """Explain where a pod would be scheduled or why it is unschedulable, or what blocks or triggers the disruption of a node.

    Read-only.
    """
    settings = resolve_or_exit("explain", flags, filename)
    asked = explain_subjects.parse_subject(subject)
    input_options = planning_options.InputOptions(
        filename, replicas, region, live_prices, recursive=recursive, skip_invalid=skip_invalid
    )
    with planning.gc_disabled():
        is_node = asked.kind == "Node"
        plan_input = planning.load_plan_input(input_options, settings, cluster_objects.FREEZE_KINDS if is_node else ())
        if is_node:
            _explain_node(plan_input, asked.name, planning_options.disruption_options(settings), output)
        else:
            pod = find_pod(plan_input.objects, _namespace_of(asked, namespace), asked)
            explanation_and_plan = explained_pod(plan_input, pod, settings.scheduling_options(settings.gates))
            _write_pod(plan_input, *explanation_and_plan, output, in_full=verbose or output == "wide")


def _namespace_of(subject: explain_subjects.Subject, option: str | None) -> str:
    """Raises ``WrongInput`` where both name one, and not the same."""
    if subject.namespace and option not in (None, subject.namespace):
        raise terminal.WrongInput(
            f"{subject.namespace}/{subject.name} is not in --namespace {option}: keep one of them"
        )
    return subject.namespace or option or _DEFAULT_NAMESPACE


def _write_pod(
    plan_input: planning.PlanInput, explanation: PodExplanation, plan: Solution, output: Output, *, in_full: bool
) -> None:
    from karpenter.cli import render_pod, render_prices
    from karpenter.scheduling.explain.reason_messages import reason_message, short_reason_message

    reason_text = reason_message if in_full else short_reason_message
    prices = plan_input.instance_types.prices
    printable = Printable(
        document=lambda: {**render_pod.document(explanation), "prices": render_prices.price_data(prices, plan)},
        page=lambda out: render_pod.write(explanation, render_prices.price_lines(prices, plan), reason_text, out),
        names=lambda: [f"pod/{explanation.pod.metadata.name}"],
    )
    write_output(output, printable)


def explained_pod(
    plan_input: planning.PlanInput, pod: Pod, options: SchedulingOptions
) -> tuple[PodExplanation, Solution]:
    """What the plan for all pods says about this one, and the plan."""
    from karpenter.cli import render_pod
    from karpenter.scheduling.explain.heavier_pools import passed_node_pools

    computed = planning.compute_plan(plan_input, options)
    plan = computed.solution
    explanation = render_pod.explain_pod(pod, plan)
    if explanation.claim is not None:
        passed = passed_node_pools(explanation.claim, pod, computed.problem, plan, plan_input.instance_types.indexes)
        explanation = replace(explanation, passed_pools=passed)
    return explanation, plan


def _explain_node(plan_input: planning.PlanInput, name: str, options: DisruptionOptions, output: Output) -> None:
    from karpenter.cli import render_node

    explanation, preview = explained_node(plan_input, name, options)
    printable = Printable(
        document=lambda: render_node.document(explanation, preview),
        page=lambda out: render_node.write(explanation, preview, out),
        names=lambda: [node_name(explanation.state_node.name)],
    )
    write_output(output, printable)


def explained_node(
    plan_input: planning.PlanInput, name: str, options: DisruptionOptions
) -> tuple[NodeExplanation, DisruptionPreview]:
    """What blocks or triggers the disruption of a node, and the decision about all. Ends the command where there is none."""
    from karpenter.disruption.decide.node_explanation import explain_node

    _require_node(plan_input.objects, name)
    preview = planning.compute_disruption_preview(plan_input, options)
    views = [view for view in preview.snapshot.nodes if name in (view.name, view.key)]
    if not views:
        terminal.exit_with_error(f"node {name} is left out, see above", terminal.WRONG_INPUT)
    return explain_node(views[0], preview, plan_input.instance_types.indexes), preview


def _require_node(objects: ClusterObjects, name: str) -> None:
    """End the command where there is neither a Node nor a NodeClaim of that name, with names that are nearly the same."""
    nodes = {node.metadata.name for node in objects.nodes}
    names = sorted(nodes | {claim.metadata.name for claim in objects.claims})
    if name in names:
        return
    where = "cluster" if objects.from_cluster else "input"
    near = difflib.get_close_matches(name, names, _SUGGESTED_NAMES) or names[:_SUGGESTED_NAMES]
    hint = f"; did you mean {' or '.join(near)}?" if near else "; it has none"
    terminal.exit_with_error(f"no Node or NodeClaim {name} in the {where}{hint}", terminal.WRONG_INPUT)


def find_pod(objects: ClusterObjects, namespace: str, subject: explain_subjects.Subject) -> Pod:
    """The pod, or the first of a workload's pods: one without a node where there is one. Ends the command where there is none."""
    if subject.kind != "Pod":
        return _first_pod_of(objects, namespace, subject)
    name = subject.name
    named = [pod for pod in objects.pods if pod.metadata.name == name]
    for pod in named:
        if pod.metadata.namespace == namespace:
            return pod
    where = "cluster" if objects.from_cluster else "input"
    names = sorted({pod.metadata.name for pod in objects.pods if pod.metadata.namespace == namespace})
    hint = _namespace_hint([pod.metadata.namespace for pod in named]) or _name_hint(name, names)
    return terminal.exit_with_error(f"no pod {namespace}/{name} in the {where}{hint}", terminal.WRONG_INPUT)


def _first_pod_of(objects: ClusterObjects, namespace: str, workload: explain_subjects.Subject) -> Pod:
    pods = explain_subjects.pods_of_workload(objects.pods, namespace, workload)
    if not pods:
        where = "cluster" if objects.from_cluster else "input"
        hint = _namespace_hint(explain_subjects.namespaces_of_workload(objects.pods, workload))
        terminal.exit_with_error(
            f"no pod of {workload.kind} {namespace}/{workload.name} in the {where}{hint}", terminal.WRONG_INPUT
        )
    terminal.print_error(f"{workload.kind} {workload.name} has {len(pods)} pods; this is {pods[0].metadata.name}")
    return pods[0]


def _name_hint(name: str, names: Sequence[str]) -> str:
    """Names that are nearly the same or begin with it, as those of a workload's pods do."""
    near = [other for other in names if other.startswith(f"{name}-")] or difflib.get_close_matches(name, names)
    return f"; did you mean {' or '.join(near[:_SUGGESTED_NAMES])}?" if near else ""


def _namespace_hint(namespaces: Sequence[str]) -> str:
    if not namespaces:
        return ""
    shown = ", ".join(f"-n {namespace}" for namespace in sorted(namespaces)[:_SUGGESTED_NAMES])
    return f"; there is one of that name with {shown}"
