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

from karpenter.cli import deciding
from karpenter.decide.worth import COST_PER_INTERRUPTION, EXPOSURE, NODE_FEE_PER_HOUR

if TYPE_CHECKING:
    from karpenter.api.core import Pod
    from karpenter.cli.inputs import Objects
    from karpenter.cli.render_reasons import Json
    from karpenter.decide.disrupt import DisruptionOptions
    from karpenter.decide.provision import Options

Output = Literal["text", "table", "json", "yaml"]
_SHOWN = 3


def explain(
    kind: Annotated[
        Literal["pod", "node"], typer.Argument(metavar="pod|node", help="What to explain: a pod, or a node.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; of a node also that of its NodeClaim.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="The namespace of a pod.")] = "default",
    filename: deciding.Files = None,
    instance_types: deciding.InstanceTypes = "",
    output: Annotated[
        Output, typer.Option("-o", "--output", help="What to print; text and table are the same.")
    ] = "text",
    skip_invalid: deciding.SkipInvalid = False,
    preference_policy: deciding.PreferencePolicy = "Respect",
    min_values_policy: deciding.MinValuesPolicy = "Strict",
    scheduler_config: deciding.SchedulerConfig = "",
    node_fee: deciding.NodeFee = NODE_FEE_PER_HOUR,
    exposure: deciding.Exposure = EXPOSURE,
    interruption_cost: deciding.InterruptionCost = COST_PER_INTERRUPTION,
    feature_gates: deciding.FeatureGates = "",
) -> None:
    """Say where a pod would go or why it waits, or what keeps a node and what would take it. Changes nothing."""
    from karpenter.cli import inputs

    worth = deciding.worth_of(node_fee, exposure, interruption_cost)
    options = deciding.options_of(preference_policy, min_values_policy, scheduler_config, worth)
    with deciding.uncollected():
        further = inputs.FREEZE if kind == "node" else ()
        ground = deciding.ready(filename, instance_types, options, further, skip_invalid=skip_invalid)
        if kind == "node":
            _about_node(ground, name, deciding.disruption_options_of(options, feature_gates), output)
        else:
            _about_pod(ground, namespace, name, options, output)


def _about_pod(ground: deciding.Ground, namespace: str, name: str, options: Options, output: Output) -> None:
    from karpenter.cli import render_explain

    pod = _pod(ground.objects, namespace, name)
    plan, _ = deciding.decided(ground.objects, ground.catalogue.index, options)
    found = render_explain.answer(pod, plan)
    _write(lambda: render_explain.document(found), lambda out: render_explain.write(found, out), output)


def _about_node(ground: deciding.Ground, name: str, options: DisruptionOptions, output: Output) -> None:
    from karpenter.cli import render_node
    from karpenter.decide.disrupt.why import standing

    _check_node(ground.objects, name)
    seen = deciding.looked_ahead(ground, options)
    views = [view for view in seen.snapshot.nodes if name in (view.name, view.key)]
    if not views:
        deciding.stop(f"node {name} cannot be judged: it is left out, see above", deciding.WRONG_INPUT)
    found = standing(views[0], seen, deciding.indexes_of(ground))
    _write(lambda: render_node.document(found, seen), lambda out: render_node.write(found, seen, out), output)


def _check_node(objects: Objects, name: str) -> None:
    """End the command where there is neither a Node nor a NodeClaim of that name, with names that are nearly the same."""
    nodes = {node.metadata.name for node in objects.nodes}
    names = sorted(nodes | {claim.metadata.name for claim in objects.claims})
    if name in names:
        return
    where = "cluster" if objects.live else "input"
    near = difflib.get_close_matches(name, names, _SHOWN) or names[:_SHOWN]
    hint = f"; did you mean {' or '.join(near)}?" if near else "; there is none at all"
    deciding.stop(f"no Node or NodeClaim {name} in the {where}{hint}", deciding.WRONG_INPUT)


def _pod(objects: Objects, namespace: str, name: str) -> Pod:
    named = [pod for pod in objects.pods if pod.metadata.name == name]
    for pod in named:
        if pod.metadata.namespace == namespace:
            return pod
    where = "cluster" if objects.live else "input"
    hint = _hint([pod.metadata.namespace for pod in named])
    return deciding.stop(f"no pod {namespace}/{name} in the {where}{hint}", deciding.WRONG_INPUT)


def _hint(namespaces: Sequence[str]) -> str:
    if not namespaces:
        return ""
    shown = ", ".join(f"-n {namespace}" for namespace in sorted(namespaces)[:_SHOWN])
    return f"; there is one of that name with {shown}"


def _write(document: Callable[[], Json], page: Callable[[TextIO], None], output: Output) -> None:
    from karpenter.cli import render
    from karpenter.cli.output import emit, to_whoever_reads

    if output in ("text", "table"):
        with to_whoever_reads():
            page(sys.stdout)
    else:
        emit(render.to_json(document()) if output == "json" else render.to_yaml(document()))
