"""``karpenter explain pod NAME``: where a pod would go and why there, or what keeps it waiting and what would have to change.

Made from the very plan the controller would make, so the answer holds for the pod among all others. Nothing is changed anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from karpenter.cli import deciding
from karpenter.decide.worth import COST_PER_INTERRUPTION, EXPOSURE, NODE_FEE_PER_HOUR

if TYPE_CHECKING:
    from karpenter.api.core import Pod
    from karpenter.cli.inputs import Objects
    from karpenter.cli.render_explain import Answer

Output = Literal["text", "json", "yaml"]
_SHOWN = 3


def explain(
    kind: Annotated[Literal["pod"], typer.Argument(metavar="pod", help="What to explain: a pod.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Its namespace.")] = "default",
    filename: deciding.Files = None,
    instance_types: deciding.InstanceTypes = "",
    output: Annotated[Output, typer.Option("-o", "--output", help="What to print.")] = "text",
    skip_invalid: deciding.SkipInvalid = False,
    preference_policy: deciding.PreferencePolicy = "Respect",
    min_values_policy: deciding.MinValuesPolicy = "Strict",
    scheduler_config: deciding.SchedulerConfig = "",
    node_fee: deciding.NodeFee = NODE_FEE_PER_HOUR,
    exposure: deciding.Exposure = EXPOSURE,
    interruption_cost: deciding.InterruptionCost = COST_PER_INTERRUPTION,
) -> None:
    """Say where a pod would go, or why it stays waiting and what would have to change. Changes nothing."""
    from karpenter.cli.render_explain import answer

    worth = deciding.worth_of(node_fee, exposure, interruption_cost)
    options = deciding.options_of(preference_policy, min_values_policy, scheduler_config, worth)
    with deciding.uncollected():
        ground = deciding.ready(filename, instance_types, options, skip_invalid=skip_invalid)
        pod = _found(ground.objects, namespace, name)
        plan, _ = deciding.decided(ground.objects, ground.catalogue.index, options)
    _write(answer(pod, plan), output)


def _found(objects: Objects, namespace: str, name: str) -> Pod:
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


def _write(found: Answer, output: Output) -> None:
    from karpenter.cli import render_explain
    from karpenter.cli.output import emit, to_whoever_reads

    if output == "text":
        with to_whoever_reads():
            render_explain.write(found, sys.stdout)
    else:
        emit(render_explain.as_json(found) if output == "json" else render_explain.as_yaml(found))
