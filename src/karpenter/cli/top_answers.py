"""What takes ``karpenter top`` longer than a redraw: reasons of pods that wait, the price bound, and explanations.

Each answer is a pure function of the console's input, so it can be computed in a thread while the screen goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO

from karpenter.cli import render_node, render_pod
from karpenter.console.console_input import ConsoleInput
from karpenter.console.pending_pods import pod_placements
from karpenter.console.price_bound import price_bound_per_hour
from karpenter.disruption.decide.disruption_preview import preview_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.disruption.decide.node_explanation import explain_node
from karpenter.model import clock
from karpenter.scheduling.explain.reason_messages import reason_message
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.state.snapshot import PodKey


@dataclass(frozen=True)
class Assessment:
    """``placements`` of pods that wait, by namespace and name; ``bound_per_hour`` in USD, None where it is not known."""

    placements: Mapping[PodKey, str] = field(default_factory=dict)
    bound_per_hour: float | None = None


def assess(given: ConsoleInput, options: DisruptionOptions) -> Assessment:
    """What the next scheduling pass would do, and what the pods cost at least."""
    if not given.indexes:
        return Assessment()
    return Assessment(pod_placements(_plan(given, options)), price_bound_per_hour(given) or None)


def _plan(given: ConsoleInput, options: DisruptionOptions) -> Solution:
    load_solver()
    return solve(build_problem(given.snapshot, given.indexes, given.now, options.provisioning), given.indexes)


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
    explanation = render_pod.explain_pod(pod, _plan(given, options))
    render_pod.write(explanation, [f"computed at {clock.rfc3339(given.now)}"], reason_message, page)
    return page.getvalue()
