"""What the controller records: decisions with their nodes, launches, interruptions, samples; and what it does when it cannot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec

from karpenter.api import kinds
from karpenter.api.core import ResourceRequirements
from karpenter.api.karpenter import NodeClaim
from karpenter.console.console_view import ConsoleView
from karpenter.console.pending_pods import PendingPod
from karpenter.disruption.decision_journal import DecisionOutcome, JournalEntry
from karpenter.history.decision_records import changed_decisions
from karpenter.history.history_recorder import HistoryRecorder
from karpenter.history.history_records import DecisionRecord, NodeFacts
from karpenter.history.sampling import ComparedPrices, cluster_sample, pending_reasons
from karpenter.model import labels
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.settings import Settings
from support.builders import NOW, claim, node, pod, replaced, seconds
from support.console_cases import console_input
from support.disruption_cases import claimed, pool, running
from support.virtual_cluster import START, VirtualCluster, in_virtual_time

LONG_AGO = datetime(2020, 1, 1, tzinfo=NOW.tzinfo)


def new_claim(name: str) -> NodeClaim:
    made = claim(name)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=NOW))


def entry(**fields: object) -> JournalEntry:
    values = {"replacements": ("claim-r",), "pods": 2, "saving_per_hour": 1.0, **fields}
    return JournalEntry("cmd", NOW, "Underutilized", "replace", "single", ("np",), (("n", "claim-n"),), **values)


def test_a_disruption_keeps_what_its_nodes_were_after_they_are_gone() -> None:
    before = console_input(pool(), running("n", "m", 1))
    (first,) = [row for row in changed_decisions(before, [entry()], {}) if row.kind == "disruption"]
    assert first.text == "-1 node +1 node (underutilized)"
    assert (first.saving_per_hour, first.pods, first.outcome) == (1.0, 2, "under way")
    (gone,) = first.before
    assert (gone.instance_type, gone.price_per_hour, gone.cpu_fill) == ("m", 2.0, 0.25)
    ended = entry(outcome=DecisionOutcome.SUCCEEDED, ended_at=seconds(60))
    after = replace(console_input(pool(), running("r", "s", 1)), now=seconds(60))
    (last,) = [row for row in changed_decisions(after, [ended], {"cmd": first}) if row.kind == "disruption"]
    assert last.before == first.before
    assert [(node.instance_type, node.price_per_hour) for node in last.after] == [("s", 1.0)]
    assert last.outcome == "succeeded"
    assert not [row for row in changed_decisions(after, [ended], {"cmd": last}) if row.kind == "disruption"], (
        "nothing changed"
    )


def test_a_node_that_was_drained_before_its_decision_was_seen_is_recorded_with_the_pods_it_had() -> None:
    full = console_input(pool(), running("n", "m", 1, 1)).snapshot.nodes
    for now in (console_input(pool(), running("n", "m")), console_input(pool())):
        (first,) = [row for row in changed_decisions(now, [entry()], {}, full) if row.kind == "disruption"]
        assert [(node.instance_type, node.pods, node.cpu_fill) for node in first.before] == [("m", 2, 0.5)]


def test_a_launch_is_recorded_with_the_pods_it_was_made_for() -> None:
    (made,) = claimed([new_claim("a")], resources=ResourceRequirements(requests={"cpu": "1", "pods": "3"}))
    assert isinstance(made, NodeClaim)
    launched = replaced(made, status=replaced(made.status, allocatable={"cpu": "4"}))
    (record,) = changed_decisions(console_input(pool(), launched), [], {})
    assert [(node.pods, node.cpu_fill) for node in record.after] == [(3, 0.25)]


def test_a_replacement_is_part_of_its_disruption_and_no_launch() -> None:
    made = new_claim("r")
    notes = {labels.DISRUPTION_DECISION: "cmd", labels.DISRUPTION_REPLACES: "n"}
    replacement = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=notes))
    assert changed_decisions(console_input(pool(), replacement), [], {}) == ()
    (launched,) = changed_decisions(console_input(pool(), made), [], {})
    assert (launched.kind, launched.reason, launched.outcome) == ("launch", "np", "under way")
    assert launched.text.startswith("+1 node")


def test_a_launch_whose_nodes_go_stays_as_it_was() -> None:
    both = console_input(pool(), *(new_claim(name) for name in ("a", "b")))
    (launched,) = changed_decisions(both, [], {})
    one = console_input(pool(), new_claim("a"))
    assert changed_decisions(one, [], {launched.decision_id: launched}) == ()


def test_a_sample_has_the_figures_of_the_view() -> None:
    view = ConsoleView(
        console_input(pool(), running("n", "m", 1), pod("huge", {"cpu": "100"}), node("other", {"cpu": 4}))
    )
    taken = cluster_sample(view, ComparedPrices(1.5))
    assert (taken.price_per_hour, taken.managed_price_per_hour, taken.bound_per_hour) == (2.0, 2.0, 1.5)
    assert (taken.nodes, taken.pending_pods) == (len(view.nodes), 1)
    by_pool = {part.name: part.price_per_hour for part in taken.parts if part.dimension == "NodePool"}
    assert by_pool["np"] == 2.0
    assert [waiting.pods for waiting in taken.pending] == [1]


def test_rare_reasons_beyond_fifty_are_counted_together() -> None:
    waiting = [PendingPod("ns", str(number), None, {}, f"reason {number}") for number in range(60)]
    counted = list(pending_reasons(waiting))
    assert len(counted) == 51
    assert counted[-1].reason == "other"
    assert sum(entry.pods for entry in counted) == 60


def kept(tmp_path: Path) -> Settings:
    return Settings(history_file=str(tmp_path / "history.db"))


def recorder(cluster: VirtualCluster) -> HistoryRecorder:
    assert cluster.manager is not None
    return cast(HistoryRecorder, cluster.manager.history)


async def _recorded(cluster: VirtualCluster, settings: Settings) -> HistoryRecorder:
    """A controller that launched a node."""
    await cluster.node_class()
    await cluster.pool()
    cluster.simulated()
    cluster.scheduled()
    await cluster.start(settings)
    await cluster.waiting(pod("p", {"cpu": "1"}))
    history = recorder(cluster)
    for _ in range(100):
        if any(row.outcome == "succeeded" for row in history.store.decisions(LONG_AGO, 10)):
            return history
        await asyncio.sleep(5)
    raise AssertionError(history.store.decisions(LONG_AGO, 10))


@in_virtual_time
async def test_a_running_controller_records_launches_samples_and_interruptions(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    history = await _recorded(cluster, kept(tmp_path))
    (launched,) = history.store.decisions(LONG_AGO, 10)
    assert (launched.kind, launched.reason) == ("launch", "np")
    (facts,) = launched.after
    assert facts.instance_type
    assert facts.price_per_hour
    name = facts.name
    made = await cluster.get_claim(name)
    assert cluster.manager is not None
    interrupted = ObjectEvent(involved_claim(made.metadata), WARNING, "SpotInterrupted", "it goes in two minutes")
    cluster.manager.context.events.publish(interrupted)
    while not (told_of := history.store.interruptions(LONG_AGO, 10)):
        await asyncio.sleep(5)
    assert [(row.reason, row.node) for row in told_of] == [("SpotInterrupted", name)]
    while not [row for row in history.store.samples(LONG_AGO, 100) if row.price_per_hour > 0]:
        await asyncio.sleep(5)
    assert history.store.samples(LONG_AGO, 100)[-1].at >= START


@in_virtual_time
async def test_after_a_restart_launches_keep_nodes_that_went_and_open_commands_are_closed_as_unknown(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    """While no controller runs, nodes go and commands are lost with the process that ran them."""
    history = await _recorded(cluster, kept(tmp_path))
    await cluster.stop()
    (launched,) = history.store.decisions(LONG_AGO, 10)
    both = replace(launched, after=(*launched.after, NodeFacts("went", "np", "m", price_per_hour=2.0)))
    command = DecisionRecord("cmd", launched.at, "disruption", "Empty", "-1 node (empty)", "under way")
    lost = DecisionRecord("launch-lost", launched.at, "launch", "np", "+1 node (launching)", "under way")
    history.store.add_decisions([both, command, lost])
    await cluster.start(kept(tmp_path))
    for _ in range(5):
        await asyncio.sleep(5)
    read = {row.decision_id: row for row in recorder(cluster).store.decisions(LONG_AGO, 10)}
    assert read[both.decision_id] == both
    assert (read["cmd"].outcome, read["cmd"].cause) == ("unknown", "the controller that ran it ended before it did")
    assert (read["launch-lost"].outcome, read["launch-lost"].cause) == ("unknown", "its NodeClaims went")
    assert len(read) == 3


@in_virtual_time
async def test_a_history_that_cannot_be_written_is_logged_once_and_costs_no_decision(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    await cluster.node_class()
    await cluster.pool()
    cluster.simulated()
    cluster.scheduled()
    await cluster.start(
        Settings(history_file=str(tmp_path / "taken" / "history.db"), history_interval=timedelta(seconds=5))
    )
    await cluster.waiting(pod("p", {"cpu": "1"}))
    for _ in range(20):
        await asyncio.sleep(5)
    assert (await cluster.kube.get(kinds.POD, "p", "default")).spec.node_name
    assert len(cluster.lines("the history cannot be written")) == 1


@in_virtual_time
async def test_without_a_file_there_is_no_history(cluster: VirtualCluster) -> None:
    await cluster.start()
    assert cluster.manager is not None
    assert cluster.manager.history is None
