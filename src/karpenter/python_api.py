"""Plans and explanations for notebooks and scripts: ``from karpenter import load, plan, explain``.

The functions make the decisions of ``karpenter plan`` and ``karpenter explain`` with the same code; the results are frozen
dataclasses. Nothing is written to the cluster. What the commands report on standard error is in ``warnings`` of each result, and
input that ends a command raises an exception:

InputError      the input is wrong; the text says what, where and how to fix it
ClusterError    the cluster or the cloud refused, or gave no answer

Money is USD per hour. The names here follow semantic versioning: a later release of the same major version keeps them, their
parameters and their fields, and may add to them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from io import StringIO
from os import PathLike, fspath
from typing import Literal, TypedDict, TypeVar, Unpack

import typer

from karpenter.cli import explain_command, explain_subjects, planning, render_node, render_plan_data, render_pod
from karpenter.cli.cluster_objects import FREEZE_KINDS
from karpenter.cli.planning_options import InputOptions, ReplicaChoice, disruption_options
from karpenter.cli.render_common import Json, pod_name, to_json
from karpenter.cli.render_plan_data import PlanReport, PlanTiming
from karpenter.cli.render_prices import price_data, price_lines
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit
from karpenter.cli.terminal import CommandError, WrongInput, collected_errors
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from karpenter.scheduling.explain.reason_messages import reason_message
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution, UnschedulablePod
from karpenter.settings import Settings

__all__ = [
    "load",
    "load_text",
    "load_cluster",
    "plan",
    "explain",
    "LoadOptions",
    "LoadedObjects",
    "Plan",
    "PlannedNode",
    "PodsOnNode",
    "UnscheduledPod",
    "Explanation",
    "InputError",
    "ClusterError",
]

T = TypeVar("T")

#: A row of a table: plain values by column.
Record = dict[str, str | int | float | bool | None]


class InputError(ValueError):
    """The input is wrong: one line for each fault, with where it is and how to fix it."""


class ClusterError(ConnectionError):
    """The cluster or the cloud refused, or gave no answer."""


class LoadOptions(TypedDict, total=False):
    """How objects are read; the options of ``karpenter plan``."""

    region: str
    """EC2 region whose instance types and prices count. Default: the one that nodes, NodePools or pods name."""
    replicas: ReplicaChoice
    """Replicas of workloads with a HorizontalPodAutoscaler: ``min``, ``current`` (default) or ``max``."""
    recursive: bool
    """Also read the directories in directories."""
    skip_invalid: bool
    """Leave invalid objects out, with a warning, instead of raising ``InputError``."""
    live_prices: bool
    """Take instance types and prices from EC2, with the credentials of the environment."""
    settings: Mapping[str, str]
    """Settings by name, as ``{"profile": "karpenter", "node_fee": "0.01"}``; docs/settings.md lists them. Settings that are not
    given have the value of their environment variable, else their default."""


@dataclass(frozen=True, slots=True)
class LoadedObjects:
    """Objects to plan for, with the instance types and prices of their NodePools.

    ``warnings``: what is probably not meant, and what was left out.
    """

    warnings: tuple[str, ...]
    _plan_input: planning.PlanInput = field(repr=False)
    _settings: Settings = field(repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """How many pods, nodes, NodePools and NodeClaims there are; workloads count as their pods."""
        objects = self._plan_input.objects
        return {
            "pods": len(objects.pods),
            "nodes": len(objects.nodes),
            "nodePools": len(objects.pools),
            "nodeClaims": len(objects.claims),
        }


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node that would be launched.

    ``instance_type``, ``zone`` and ``capacity_type`` are those of the cheapest offering, ``price_per_hour`` is its price;
    ``cpu_surplus_per_hour`` is added for CPU beyond a burstable type's baseline. ``instance_types`` are all types that hold the
    pods, cheapest first. ``requests`` are quantities as Kubernetes writes them. ``pods`` are ``namespace/name``.
    """

    name: str
    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str
    price_per_hour: float
    cpu_surplus_per_hour: float
    instance_types: tuple[str, ...]
    requests: Mapping[str, str]
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodsOnNode:
    """Pending pods that an existing node takes. ``pods`` are ``namespace/name``.

    ``awaits_terminating_pods``: they fit only once pods that are being deleted there have ended.
    """

    node: str
    pods: tuple[str, ...]
    awaits_terminating_pods: bool


@dataclass(frozen=True, slots=True)
class UnscheduledPod:
    """A pod that stays pending.

    ``reasons``: one for each NodePool, or one about the pod. ``nearest_fit``: the smallest change with which it would fit; empty
    where there is none.
    """

    pod: str
    reasons: tuple[str, ...]
    nearest_fit: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What Karpenter would do for the pending pods.

    ``price_per_hour``: of all new nodes with their surplus CPU. No packing costs less than ``lower_bound_per_hour``;
    ``gap`` is the share above it; both are None where no bound is known. ``is_optimal``: it is proven that no plan is better.
    ``seconds``: time of the decision.
    """

    nodes: tuple[PlannedNode, ...]
    existing_nodes: tuple[PodsOnNode, ...]
    unschedulable: tuple[UnscheduledPod, ...]
    price_per_hour: float
    lower_bound_per_hour: float | None
    gap: float | None
    is_optimal: bool
    seconds: float
    warnings: tuple[str, ...]
    _report: PlanReport = field(repr=False, compare=False)

    def to_records(self) -> list[Record]:
        """One row for each new node, for ``pandas.DataFrame``: ``pods`` is their number."""
        return [
            {
                "name": node.name,
                "node_pool": node.node_pool,
                "instance_type": node.instance_type,
                "zone": node.zone,
                "capacity_type": node.capacity_type,
                "price_per_hour": node.price_per_hour,
                "cpu_surplus_per_hour": node.cpu_surplus_per_hour,
                "pods": len(node.pods),
            }
            for node in self.nodes
        ]

    def pod_records(self) -> list[Record]:
        """One row for each pod: ``state`` is ``new-node``, ``existing-node`` or ``unschedulable``; then ``node`` is None."""
        return [
            *(_pod_record(pod, render_pod.PodOutcome.NEW_NODE, node.name) for node in self.nodes for pod in node.pods),
            *(
                _pod_record(pod, render_pod.PodOutcome.EXISTING_NODE, placed.node)
                for placed in self.existing_nodes
                for pod in placed.pods
            ),
            *(_pod_record(pod.pod, render_pod.PodOutcome.UNSCHEDULABLE, None) for pod in self.unschedulable),
        ]

    def to_dict(self) -> Json:
        """The document of ``karpenter plan -o json``."""
        return render_plan_data.document(self._report)

    def to_json(self) -> str:
        """``to_dict`` as indented JSON."""
        return to_json(self.to_dict())

    def to_text(self) -> str:
        """The page of ``karpenter plan``, for 80 columns."""
        from karpenter.cli import render_plan

        page = StringIO()
        render_plan.write(self._report, page)
        return page.getvalue()

    def __str__(self) -> str:
        return self.to_text()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a pod would be scheduled or why not, or what blocks or triggers the disruption of a node.

    ``state``: for pods ``unschedulable``, ``new-node``, ``existing-node``, ``bound`` or ``not-pending``; for nodes
    ``disruptable``, ``waiting-for-budget``, ``blocked`` or ``needed``. ``headline``: the answer in one sentence;
    ``text``: all of it, as ``karpenter explain`` prints it.
    """

    subject: str
    state: str
    headline: str
    text: str
    warnings: tuple[str, ...]
    _document: Json = field(repr=False)

    def to_dict(self) -> Json:
        """The document of ``karpenter explain -o json``."""
        return self._document

    def __str__(self) -> str:
        return self.text


# -- loading ------------------------------------------------------------------------------------------------------------


def load(*paths: str | PathLike[str], **options: Unpack[LoadOptions]) -> LoadedObjects:
    """Load the objects of files and directories, YAML or JSON. Workloads are expanded to their pods.

    Raises ``InputError`` where no path is given, or objects are invalid; ``ClusterError`` where live prices cannot be read.
    """
    if not paths:
        raise InputError("no path is given: name a file or a directory, or use load_text or load_cluster")
    return _load(InputOptions([fspath(path) for path in paths]), options)


def load_text(text: str, **options: Unpack[LoadOptions]) -> LoadedObjects:
    """Load the objects of a text, YAML or JSON. Raises as ``load`` does."""
    return _load(InputOptions(None, text=text), options)


def load_cluster(kubeconfig: str = "", context: str = "", **options: Unpack[LoadOptions]) -> LoadedObjects:
    """Load the objects of a cluster; by default that of ``KUBECONFIG``, or of the pod. Only reads.

    Raises ``ClusterError`` where the cluster cannot be read, ``InputError`` where options are wrong.
    """
    connection = {"kubeconfig": kubeconfig, "context": context}
    given = {name: value for name, value in connection.items() if value}
    settings = {**options.get("settings", {}), **given}
    return _load(InputOptions(None), {**options, "settings": settings})


def _load(source: InputOptions, options: LoadOptions) -> LoadedObjects:
    _check_names(options, tuple(LoadOptions.__annotations__), "option")
    input_options = replace(
        source,
        **{name: value for name, value in options.items() if name != "settings"},  # type: ignore[arg-type]
    )
    with _errors_raised() as lines:
        settings = _resolve_settings(options.get("settings", {}))
        plan_input = _in_thread(lambda: planning.load_plan_input(input_options, settings, FREEZE_KINDS))
    return LoadedObjects(tuple(lines), plan_input, settings)


def _resolve_settings(given: Mapping[str, str]) -> Settings:
    _check_names(given, PLANNING_SETTINGS, "setting")
    flags: Flags = {name: given.get(name) for name in PLANNING_SETTINGS}
    return resolve_or_exit("load", flags)


def _check_names(given: Mapping[str, object], names: tuple[str, ...], noun: str) -> None:
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(names))}"
            raise InputError(f"no {noun} {name!r}; {hint}")


def _in_thread(work: Callable[[], T]) -> T:
    """The result of work that runs an event loop: a notebook has one already in its own thread."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(copy_context().run, work).result()


@contextmanager
def _errors_raised() -> Iterator[list[str]]:
    """Turn the end of a command into an exception; yields the lines that are reported meanwhile."""
    with collected_errors() as lines:
        try:
            yield lines
        except WrongInput as error:
            raise InputError(str(error)) from error
        except CommandError as error:
            raise ClusterError(str(error)) from error
        except typer.Exit as error:
            raise InputError("\n".join(lines)) from error


# -- deciding -----------------------------------------------------------------------------------------------------------


def plan(objects: LoadedObjects, packing: Literal["cheapest", "classic", "fewest-pods"] | None = None) -> Plan:
    """The nodes Karpenter would launch for the pending pods, and their cost.

    ``packing``: ``classic`` packs first-fit decreasing, one node at a time, ``fewest-pods`` as Karpenter does; by default the
    setting ``packing`` counts.
    Raises ``InputError``.
    """
    settings, plan_input = objects._settings, objects._plan_input
    options = settings.scheduling_options(settings.gates)
    if packing is not None:
        _check_names({packing: ""}, tuple(PackingMode), "packing")
        options = replace(options, packing_mode=PackingMode(packing))
    with _errors_raised() as lines:
        computed = planning.compute_plan(plan_input, options)
        planning.report_skipped_pools(computed.solution, plan_input.objects)
    instance_types = plan_input.instance_types
    timing = PlanTiming(computed.seconds, instance_types.load_seconds, computed.seconds + instance_types.load_seconds)
    increases = planning.needed_limit_increases(plan_input, computed)
    report = PlanReport(
        computed.solution, instance_types.indexes, timing, instance_types.prices, limit_increases=increases
    )
    return _plan_of(computed.solution, report, (*objects.warnings, *lines))


def _plan_of(solution: Solution, report: PlanReport, warnings: tuple[str, ...]) -> Plan:
    return Plan(
        nodes=tuple(map(_planned_node, solution.new_claims)),
        existing_nodes=tuple(map(_pods_on_node, solution.placed_on_existing)),
        unschedulable=tuple(map(_unscheduled_pod, solution.unschedulable)),
        price_per_hour=float(solution.price_per_hour + solution.cpu_surplus_per_hour),
        lower_bound_per_hour=solution.lower_bound_per_hour,
        gap=solution.optimality_gap,
        is_optimal=solution.is_optimal,
        seconds=report.timing.decision_seconds,
        warnings=warnings,
        _report=report,
    )


def _pods_on_node(placed: PlacedPods) -> PodsOnNode:
    return PodsOnNode(placed.node_name, tuple(map(pod_name, placed.pods)), placed.awaits_terminating_pods)


def _planned_node(claim: NewNodeClaim) -> PlannedNode:
    return PlannedNode(
        name=claim.name,
        node_pool=claim.node_pool,
        instance_type=claim.instance_types[0],
        zone=claim.cheapest_offering.zone,
        capacity_type=claim.cheapest_offering.capacity_type,
        price_per_hour=claim.price_per_hour,
        cpu_surplus_per_hour=claim.cpu_surplus_per_hour,
        instance_types=tuple(claim.instance_types),
        requests={name: str(quantity) for name, quantity in claim.claim.spec.resources.requests.items()},
        pods=tuple(map(pod_name, claim.pods)),
    )


def _unscheduled_pod(unplaced: UnschedulablePod) -> UnscheduledPod:
    return UnscheduledPod(
        pod_name(unplaced.pod),
        tuple(map(reason_message, unplaced.reasons)),
        nearest_fit_sentence(unplaced.nearest_fit, unplaced.nearest_node),
    )


def _pod_record(pod: str, state: render_pod.PodOutcome, node: str | None) -> Record:
    namespace, _, name = pod.partition("/")
    return {"namespace": namespace, "pod": name, "state": state.value, "node": node}


# -- explaining ---------------------------------------------------------------------------------------------------------


def explain(objects: LoadedObjects, subject: str, namespace: str = "default") -> Explanation:
    """Explain where a pod would be scheduled or why it is unschedulable, or what blocks or triggers the disruption of a node.

    ``subject``: ``pod/NAME``, ``node/NAME`` or a workload such as ``deployment/NAME``, which stands for its first pending pod.
    Raises ``InputError`` where there is no such object.
    """
    with _errors_raised() as lines:
        parsed = explain_subjects.parse_subject((subject,))
        is_node = parsed.kind == "Node"
        explanation = _explain_node(objects, parsed.name) if is_node else _explain_pod(objects, namespace, parsed)
    return replace(explanation, warnings=(*objects.warnings, *lines))


def _explain_pod(objects: LoadedObjects, namespace: str, subject: explain_subjects.Subject) -> Explanation:
    settings, plan_input = objects._settings, objects._plan_input
    pod = explain_command.find_pod(plan_input.objects, namespace, subject)
    options = settings.scheduling_options(settings.gates)
    explained, solution = explain_command.explained_pod(plan_input, pod, options)
    prices = plan_input.instance_types.prices
    text = StringIO()
    render_pod.write(explained, price_lines(prices, solution), reason_message, text)
    document = {**render_pod.document(explained), "prices": price_data(prices, solution)}
    headline = render_pod.headline(explained)
    return Explanation(pod_name(pod), explained.outcome.value, headline, text.getvalue(), (), document)


def _explain_node(objects: LoadedObjects, name: str) -> Explanation:
    options = disruption_options(objects._settings)
    explained, preview = explain_command.explained_node(objects._plan_input, name, options)
    text = StringIO()
    render_node.write(explained, preview, text)
    document = render_node.document(explained, preview)
    headline = render_node.headline(explained)
    return Explanation(
        explained.state_node.name, render_node.outcome(explained).value, headline, text.getvalue(), (), document
    )
