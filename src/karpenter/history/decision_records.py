"""Decisions as entries of the history: what the journal says of disruptions, and the NodeClaims that were launched."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256

from karpenter.api.karpenter import NodeClaim
from karpenter.console.console_input import ConsoleInput
from karpenter.disruption.decide.costs import NodePrices
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.history.history_records import UNDER_WAY, DecisionRecord, NodeFacts
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError
from karpenter.model.texts import count_text
from karpenter.state.state_node import StateNode

#: Decisions change for so long: replacements get a type, commands end.
SETTLING = timedelta(hours=1)


def changed_decisions(
    given: ConsoleInput,
    journal: Sequence[JournalEntry],
    recorded: Mapping[str, DecisionRecord],
    nodes_before: Sequence[StateNode] = (),
) -> tuple[DecisionRecord, ...]:
    """The decisions of the last hour that are not recorded as they are now.

    ``recorded``: by ID, what was recorded last. ``nodes_before``: the nodes as they were seen the time before. A node that goes
    may have been drained since, or be gone.
    """
    facts = _FactsOfNodes(given, nodes_before)
    made = [*_disruptions(journal, given.now, facts), *_launches(given, facts)]
    merged = (_merged(record, recorded.get(record.decision_id)) for record in made)
    changed = (record for record in merged if record != recorded.get(record.decision_id))
    return (*changed, *_abandoned(recorded, {record.decision_id for record in made}, given.now))


def _abandoned(recorded: Mapping[str, DecisionRecord], followed: Set[str], now: datetime) -> Iterator[DecisionRecord]:
    """Decisions under way that nothing follows any more, such as commands of a controller that ended: closed as unknown."""
    for record in recorded.values():
        if record.outcome == UNDER_WAY and record.decision_id not in followed:
            yield replace(record, outcome="unknown", cause=_abandonment(record, now))


def _abandonment(record: DecisionRecord, now: datetime) -> str:
    if record.kind == "disruption":
        return "the controller that ran it ended before it did"
    return "not all nodes were initialized within an hour" if record.at < now - SETTLING else "its NodeClaims went"


class _FactsOfNodes:
    """Facts about nodes by the name of their NodeClaim; only of those asked for, because prices take a look-up each."""

    def __init__(self, given: ConsoleInput, nodes_before: Iterable[StateNode]) -> None:
        self._views = {view.key: view for view in given.snapshot.nodes}
        self._views_before = {view.key: view for view in nodes_before}
        self._prices = NodePrices(given.indexes)

    def going(self, names: Iterable[str]) -> tuple[NodeFacts, ...]:
        """Of nodes that go, in their order, with the pods that ran there; a node that is not known has its name only."""
        views = ((name, self._views_before.get(name) or self._views.get(name)) for name in names)
        return tuple(self._of_pods(name, view) if view is not None else NodeFacts(name) for name, view in views)

    def coming(self, names: Iterable[str]) -> tuple[NodeFacts, ...]:
        """Of nodes that come, in their order, with the pods they were launched for; a node that is gone has its name only."""
        views = ((name, self._views.get(name)) for name in names)
        return tuple(self._of_claim(name, view) if view is not None else NodeFacts(name) for name, view in views)

    def _of_pods(self, name: str, view: StateNode) -> NodeFacts:
        return self._facts(name, view, (len(view.pods), view.pod_requests.get(res.CPU, 0)))

    def _of_claim(self, name: str, view: StateNode) -> NodeFacts:
        try:
            requests = res.parse_resources(view.claim.spec.resources.requests if view.claim is not None else {})
        except QuantityError:
            requests = {}
        return self._facts(name, view, (requests.get(res.PODS, 0) // res.ONE_UNIT, requests.get(res.CPU, 0)))

    def _facts(self, name: str, view: StateNode, pods_and_cpu: tuple[int, int]) -> NodeFacts:
        own = view.own_labels
        offered = view.allocatable.get(res.CPU, 0)
        pods, cpu = pods_and_cpu
        return NodeFacts(
            name,
            view.pool,
            own.get(labels.INSTANCE_TYPE, ""),
            own.get(labels.ZONE, ""),
            own.get(labels.CAPACITY_TYPE, ""),
            self._prices.price_per_hour(view),
            pods,
            cpu / offered if offered else 0.0,
        )


def _disruptions(journal: Iterable[JournalEntry], now: datetime, facts: _FactsOfNodes) -> Iterator[DecisionRecord]:
    for entry in journal:
        if (entry.ended_at or now) < now - SETTLING:
            continue
        replaced = f" +{count_text(len(entry.replacements), 'node')}" if entry.replacements else ""
        yield DecisionRecord(
            decision_id=entry.command_id,
            at=entry.decided_at,
            kind="disruption",
            reason=entry.reason,
            text=f"-{count_text(len(entry.nodes), 'node')}{replaced} ({entry.reason.lower()})",
            outcome=entry.outcome.value,
            cause=entry.cause,
            ended_at=entry.ended_at,
            pods=entry.pods,
            saving_per_hour=entry.saving_per_hour,
            before=facts.going(claim for _, claim in entry.nodes),
            after=facts.coming(entry.replacements),
        )


def _launches(given: ConsoleInput, facts: _FactsOfNodes) -> Iterator[DecisionRecord]:
    """NodeClaims of a NodePool created in the same second, except those that replace others: these belong to a disruption."""
    groups: defaultdict[tuple[datetime, str], list[NodeClaim]] = defaultdict(list)
    for view in given.snapshot.nodes:
        claim = view.claim
        if claim is None or (labels.DISRUPTION_DECISION in claim.metadata.annotations and _replaces(claim)):
            continue
        at = claim.metadata.creation_timestamp
        if at is not None and at >= given.now - SETTLING:
            groups[(at, claim.metadata.labels.get(labels.NODE_POOL, ""))].append(claim)
    for (at, pool), claims in groups.items():
        names = sorted(claim.metadata.name for claim in claims)
        after = facts.coming(names)
        # Nodes of the group that are gone by now stay in the record: its ID is that of the moment, not of the names.
        name = sha256(f"{at.isoformat()} {pool}".encode()).hexdigest()[:16]
        outcome = "succeeded" if all(_is_initialized(claim) for claim in claims) else UNDER_WAY
        yield DecisionRecord(f"launch-{name}", at, "launch", pool, _launch_text(after), outcome, after=after)


def _replaces(claim: NodeClaim) -> bool:
    return labels.DISRUPTION_REPLACES in claim.metadata.annotations


def _is_initialized(claim: NodeClaim) -> bool:
    return any(condition.type == "Initialized" and condition.status == "True" for condition in claim.status.conditions)


def _launch_text(nodes: Sequence[NodeFacts]) -> str:
    counts = Counter(node.instance_type or "launching" for node in nodes)
    type_counts = ", ".join(f"{count} x {name}" if len(counts) > 1 else name for name, count in counts.most_common())
    return f"+{count_text(len(nodes), 'node')} ({type_counts})"


def _merged(record: DecisionRecord, earlier: DecisionRecord | None) -> DecisionRecord:
    """The record with what was known of its nodes before they went, and with nodes that were launched although they are gone."""
    if earlier is None:
        return record
    if record.kind == "launch" and len(record.after) < len(earlier.after):
        return earlier
    return DecisionRecord(
        **{
            **{name: getattr(record, name) for name in DecisionRecord.__dataclass_fields__},
            "before": _first_known(record.before, earlier.before),
            "after": _latest_known(record.after, earlier.after),
        }
    )


def _first_known(now: tuple[NodeFacts, ...], then: tuple[NodeFacts, ...]) -> tuple[NodeFacts, ...]:
    facts_by_name = {node.name: node for node in then if node.pool}
    return tuple(facts_by_name.get(node.name, node) for node in now)


def _latest_known(now: tuple[NodeFacts, ...], then: tuple[NodeFacts, ...]) -> tuple[NodeFacts, ...]:
    """The first facts with a type: how full a node is later is no part of the decision."""
    facts_by_name = {node.name: node for node in then if node.instance_type}
    return tuple(facts_by_name.get(node.name, node) for node in now)
