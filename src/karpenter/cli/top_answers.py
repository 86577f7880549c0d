"""The text of ``karpenter explain`` for a node or pod of a viewer. A pure function, fit for a thread."""

from __future__ import annotations

from io import StringIO

from karpenter.cli import render_node, render_pod
from karpenter.console.assessment import next_plan
from karpenter.console.console_input import ConsoleInput
from karpenter.disruption.decide.disruption_preview import preview_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.disruption.decide.node_explanation import explain_node
from karpenter.model import clock
from karpenter.scheduling.explain.reason_messages import reason_message
from karpenter.scheduling.search.linear_program import load_solver


def explain(given: ConsoleInput, subject: str, options: DisruptionOptions) -> str:
    """The text of ``karpenter explain`` for ``node/NAME`` or ``pod/NAMESPACE/NAME``."""
    kind, _, name = subject.partition("/")
    return _explain_node(given, name, options) if kind == "node" else _explain_pod(given, name, options)


def _explain_node(given: ConsoleInput, name: str, options: DisruptionOptions) -> str:
    load_solver()
    preview = preview_disruption(given.snapshot, given.indexes, given.now, options)
    view = next((view for view in preview.snapshot.nodes if name in (view.name, view.key)), None)
    if view is None:
        is_there = any(name in (view.name, view.key) for view in given.state_nodes)
        return (
            f"node {name} has no NodeClaim that can be seen: nothing disrupts it"
            if is_there
            else f"node {name} is gone"
        )
    page = StringIO()
    render_node.write(explain_node(view, preview, given.indexes), preview, page)
    return page.getvalue()


def _explain_pod(given: ConsoleInput, name: str, options: DisruptionOptions) -> str:
    pod = next((pod for pod in given.pods if f"{pod.metadata.namespace}/{pod.metadata.name}" == name), None)
    if pod is None:
        return f"pod {name} is gone"
    page = StringIO()
    explanation = render_pod.explain_pod(pod, next_plan(given, options))
    render_pod.write(explanation, [f"computed at {clock.rfc3339(given.now)}"], reason_message, page)
    return page.getvalue()
