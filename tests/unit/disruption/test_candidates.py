"""Which nodes are candidates, and the reasons that exclude the others (DIS §4, scenarios 26.2)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.api.core import PodDisruptionBudgetStatus
from karpenter.api.meta import Condition
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.kube.decoding import metadata_of
from karpenter.model import labels
from support.builders import NOW, budget, claim, node, node_pool, owner, pod, replaced, tolerating
from support.disruption_cases import claimed, decide, gone, on, pool, running, verdict, why, with_annotation

DRIFT, EMPTY = DisruptionReason.DRIFTED, DisruptionReason.EMPTY


def test_a_node_without_claim_is_none_of_our_business() -> None:
    """DIS-S020, DIS-001: a Node without NodeClaim is not managed."""
    assert verdict("n", pool(), node("n", {"cpu": 4})) == "-"


def test_a_claim_without_node_is_no_candidate() -> None:
    """DIS-S021, DIS-072: the reason names the missing Node."""
    assert "associated node" in verdict("c", pool(), claim("c", {"cpu": 4}, provider_id="p://c"))


def test_a_node_that_still_starts_is_no_candidate() -> None:
    """DIS-S022, DIS-003, DIS-073: a managed node is initialized once its label says so."""
    assert verdict("n", pool(), running("n", initialized=False)) == "Node isn't initialized"


def test_a_node_on_its_way_out_is_no_candidate() -> None:
    """DIS-S023, DIS-004, DIS-074: a NodeClaim with a deletion timestamp is marked for deletion."""
    assert verdict("n", pool(), running("n", deleted=True)) == "Node is deleting or marked for deletion"


def test_a_nominated_node_waits_for_its_pods() -> None:
    """DIS-S024, DIS-S025: the nominating controller sets how long."""
    assert "nominated" in verdict("n", pool(), running("n"), nominated=frozenset({"claim-n"}))
    assert verdict("n", pool(), running("n"), nominated=frozenset({"claim-other"})) == ""


@pytest.mark.parametrize(
    ("value", "blocks"),
    [("true", True), ("false", False), ("0s", False), ("soon", False), ("59m", False), ("61m", True)],
)
def test_a_node_may_ask_to_be_left_alone(value: str, blocks: bool) -> None:
    """DIS-S026, API-S224, API-451: "true" blocks, and a duration does while the Node is younger."""
    host, behind = running("n")
    aged = replaced(host, metadata=replaced(metadata_of(host), creation_timestamp=NOW - timedelta(hours=1)))
    actual = verdict("n", pool(), with_annotation(aged, labels.DO_NOT_DISRUPT, value), behind)
    assert actual == ('Disruption is blocked through the "karpenter.sh/do-not-disrupt" annotation' if blocks else "")


def test_what_a_claim_says_counts_only_until_its_node_is_registered() -> None:
    """DIS-S027"""
    host, behind = running("n")
    assert verdict("n", pool(), host, with_annotation(behind, labels.DO_NOT_DISRUPT, "true")) == ""


def test_a_node_that_lost_the_label_of_its_pool_is_no_candidate() -> None:
    """DIS-S028, DIS-077: the reason names the label."""
    host, behind = running("n")
    bare = {key: value for key, value in host.metadata.labels.items() if key != labels.NODE_POOL}  # type: ignore[attr-defined]
    unlabelled = replaced(host, metadata=replaced(metadata_of(host), labels=bare))
    assert "(label=karpenter.sh/nodepool)" in verdict("n", pool(), unlabelled, behind)


def test_a_node_of_a_pool_that_is_gone_is_no_candidate() -> None:
    """DIS-S029"""
    assert verdict("n", running("n")) == "NodePool not found (NodePool=np)"


def test_a_pool_without_types_is_not_called_missing() -> None:
    """DIS-S030, with the Beyond of DIS-078."""
    solution = decide(pool(), running("n"), types={"np": ()})
    assert why(solution, "n") == "NodePool has no instance types that could be resolved (NodePool=np)"


@pytest.mark.parametrize("key", [labels.CAPACITY_TYPE, labels.ZONE])
def test_without_knowing_how_it_was_launched_a_node_is_not_consolidated_but_replaced_when_it_drifts(key: str) -> None:
    """DIS-S031, DIS-S032, DIS-087, DIS-103, DIS-104: a missing label bars consolidation, not drift."""
    host, behind, *pods = running("n", "m", 1)
    bare = {own: value for own, value in host.metadata.labels.items() if own != key}  # type: ignore[attr-defined]
    host = replaced(host, metadata=replaced(metadata_of(host), labels=bare))
    cluster = [pool(), host, behind, pods, running("other", "m", 1)]
    assert why(decide(cluster), "n") == f'Node does not have label "{key}"'
    assert verdict("n", cluster, reason=DRIFT) == ""


def test_a_node_of_an_unknown_type_is_not_consolidated() -> None:
    """DIS-S033, DIS-102: the reason names the instance type."""
    assert 'Instance Type "huge" not found' in why(decide(pool(), running("n", "huge", 1)), "n")


def test_a_node_of_a_running_command_is_left_in_peace() -> None:
    """DIS-S034, DIS-070: a node is in one command at a time, and nothing is reported for it."""
    assert verdict("n", pool(), running("n"), in_command=frozenset({"claim-n"})) == "-"


PROTECTED = {"meta": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}


@pytest.mark.parametrize(
    ("reason", "grace_period", "blocks"),
    [
        (DisruptionReason.UNDERUTILIZED, None, True),
        (DisruptionReason.UNDERUTILIZED, "1h", True),
        (DRIFT, "1h", False),
        (DRIFT, None, True),
    ],
)
def test_pods_that_must_not_be_disrupted_keep_their_node_unless_a_drain_has_an_end(
    reason: DisruptionReason, grace_period: str | None, blocks: bool
) -> None:
    """Only drift overrides them, and only with a terminationGracePeriod.

    DIS-S035 to DIS-S038, DIS-014, DIS-015, DIS-551, API-452, API-S226
    """
    cluster = claimed(running("n"), termination_grace_period=grace_period)
    actual = verdict("n", pool(), cluster, on("n", 1, **PROTECTED), reason=reason)
    assert actual == ('Pod has "karpenter.sh/do-not-disrupt" annotation (Pod=default/n-0)' if blocks else "")


@pytest.mark.parametrize(("kind", "version"), [("DaemonSet", "apps/v1"), ("Node", "v1")])
def test_pods_that_need_no_other_place_can_keep_their_node_too(kind: str, version: str) -> None:
    """DIS-S039"""
    meta = {"annotations": {labels.DO_NOT_DISRUPT: "true"}, "owner_references": (owner(kind, "d", version),)}
    assert "do-not-disrupt" in verdict("n", pool(), running("n"), pod("d", node_name="n", meta=meta))


def test_a_finished_or_terminating_pod_does_not_block_its_node() -> None:
    """DIS-S040, DIS-095, API-S223: a terminal or terminating pod never blocks."""
    done = on("n", 1, prefix="done", status={"phase": "Succeeded"}, **PROTECTED)
    going = on("n", 1, prefix="going", meta={**PROTECTED["meta"], "deletion_timestamp": NOW})
    assert verdict("n", pool(), running("n"), done, going) == ""


def shut(name: str = "b", selector: dict[str, str] | None = None, allowed: int = 0, **spec: object) -> object:
    """A PodDisruptionBudget that allows so many disruptions now."""
    disruption_budget = budget(name, {} if selector is None else selector, **spec)
    return replaced(disruption_budget, status=PodDisruptionBudgetStatus(disruptions_allowed=allowed))


def test_a_budget_that_allows_nothing_keeps_the_node() -> None:
    """DIS-S041"""
    actual = verdict("n", pool(), running("n", "m", 1), shut())
    assert actual == "PDB prevents pod evictions (PodDisruptionBudget=[default/b])"


def test_a_budget_over_daemon_pods_keeps_the_node() -> None:
    """DIS-S042"""
    daemon = pod("d", node_name="n", meta={"owner_references": (owner("DaemonSet"),)})
    assert "PDB prevents" in verdict("n", pool(), running("n"), daemon, shut())


def test_a_pdb_over_pods_that_are_never_evicted_blocks_no_node() -> None:
    """DIS-S043, DIS-S051"""
    mirror = pod("m", node_name="n", meta={"owner_references": (owner("Node", api_version="v1"),)})
    done = on("n", 1, prefix="done", status={"phase": "Failed"})
    going = on("n", 1, prefix="going", meta={"deletion_timestamp": NOW})
    staying = on("n", 1, prefix="staying", tolerations=(tolerating("karpenter.sh/disrupted"),))
    assert verdict("n", pool(), running("n"), mirror, done, going, staying, shut()) == ""


def test_two_budgets_over_one_pod_keep_the_node_whatever_they_allow() -> None:
    """DIS-S044"""
    actual = verdict("n", pool(), running("n", "m", 1), shut("a", allowed=5), shut("b", allowed=5))
    assert actual == "Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[default/a default/b])"


def test_two_pdbs_over_two_pods_block_no_node() -> None:
    """DIS-S045"""
    apart = [on("n", 1, prefix=name, meta={"labels": {"app": name}}) for name in ("x", "y")]
    budgets = [shut(name, {"app": name}, allowed=1) for name in ("x", "y")]
    assert verdict("n", pool(), running("n"), apart, budgets) == ""


@pytest.mark.parametrize(("ready", "blocks"), [("False", False), ("True", True)])
def test_a_budget_may_yield_to_pods_that_are_not_ready(ready: str, blocks: bool) -> None:
    """DIS-S046"""
    pods = on("n", 1, status={"conditions": (Condition(type="Ready", status=ready),), "phase": "Running"})
    lenient = shut(unhealthy_pod_eviction_policy="AlwaysAllow")
    assert bool(verdict("n", pool(), running("n"), pods, lenient)) is blocks


def test_a_pdb_counts_in_its_own_namespace_only() -> None:
    """DIS-S047, DIS-083: an empty selector matches all pods of its own namespace."""
    elsewhere = shut()
    elsewhere = replaced(elsewhere, metadata=replaced(elsewhere.metadata, namespace="other"))  # type: ignore[attr-defined]
    assert verdict("n", pool(), running("n", "m", 1), elsewhere) == ""


@pytest.mark.parametrize(
    ("value", "minutes", "blocks"),
    [
        ("30m", 29, True),
        ("30m", 30, False),
        ("30m", None, True),
        ("0s", 1, False),
        ("-1h", 1, False),
        ("abc", 1, False),
    ],
)
def test_a_protection_may_have_an_end(value: str, minutes: int | None, blocks: bool) -> None:
    """DIS-S048 to DIS-S050, API-S221: only a younger pod is protected."""
    started = None if minutes is None else NOW - timedelta(minutes=minutes)
    meta = {"annotations": {labels.DO_NOT_DISRUPT: value}}
    pods = on("n", 1, meta=meta, status={"phase": "Running", "start_time": started})
    assert bool(verdict("n", pool(), running("n"), pods)) is blocks


def test_a_pod_without_owner_needs_another_place() -> None:
    """DIS-S052, DIS-007: a pod without owner is reschedulable."""
    naked = pod("naked", {"cpu": "1"}, node_name="n")
    solution = decide(pool(), running("n"), naked, running("other", "m", 3))
    assert solution.commands[0].pod_restarts == 1


def test_what_failed_before_is_not_chosen_again_yet() -> None:
    """The disruption queue says which nodes are in backoff."""
    cluster = [pool(), running("n")]
    assert gone(decide(cluster)) == ["n"]
    in_backoff = DisruptionContext(NOW, excluded_by_backoff={EMPTY: frozenset({"claim-n"})})
    assert gone(decide(cluster, circumstances=in_backoff)) == []


def test_static_pools_are_not_consolidated() -> None:
    """DIS-S124, DIS-S169"""
    fixed = node_pool("np", replicas=2)
    solution = decide(fixed, running("n"), running("other", "m", 1))
    assert gone(solution) == []
    assert why(solution, "n") == 'NodePool "np" is static'
