"""Studies that begin with the nodes of a cluster or of a snapshot, and with the pods on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from karpenter.api.meta import Condition
from karpenter.cli.main import app
from karpenter.model import conditions
from karpenter.simulator import starting_cluster
from support.manifest_builders import Json, listed, pool, type_of
from support.snapshot_builders import TAKEN_AT, claim, managed, node, running

Simulate = Callable[..., Result]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """Simulates objects beside a NodePool; types with 2 and 8 CPU cost $0.1 and $0.35 an hour."""
    types = [type_of("a.small", 2, 4, 0.1), type_of("a.large", 8, 16, 0.35)]
    (tmp_path / "types.json").write_text(json.dumps(types))

    def run(*arguments: str, objects: list[Json], days: str = "0.05", pattern: str = "steady") -> Result:
        (tmp_path / "snapshot.json").write_text(json.dumps(listed(*objects)))
        given = ("simulate", "-f", str(tmp_path / "snapshot.json"), "--instance-types", str(tmp_path / "types.json"))
        return CliRunner().invoke(
            app, [*given, "--days", days, "--pattern", pattern, *arguments], catch_exceptions=False
        )

    return run


def notes_of(result: Result) -> list[str]:
    """What standard error says beside the moment that the ages are of."""
    first, *notes = result.stderr.splitlines()
    assert first.startswith("ages are as of 2026-03-04 ")
    return notes


def disrupting(**disruption: object) -> Json:
    """The NodePool, which may lose all of its nodes at once."""
    return pool(disruption={"consolidateAfter": "1m", "budgets": [{"nodes": "100%"}], **disruption})


def report_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    (report,) = json.loads(result.stdout)["reports"]
    gap = report["cost"]["gapUsd"]
    assert sum(gap.values()) == pytest.approx(report["cost"]["usd"] - report["cost"]["lowerBoundUsd"], abs=1e-9)
    return dict(report)


def test_nodes_and_pods_are_there_at_the_start_and_nothing_arrives(simulate: Simulate) -> None:
    objects = [
        pool(disruption={"consolidateAfter": "Never"}),
        *managed("one"),
        *(running(f"w{n}", "one") for n in range(5)),
    ]
    report = report_of(simulate("-o", "json", objects=objects))
    assert report["start"] == {
        "nodes": 1,
        "usdPerHour": 0.35,
        "lowerBoundUsdPerHour": pytest.approx(7500 / 7910 * 0.35, abs=0.05),
        "runningPods": 5,
        "unmanaged": {"total": 0, "byReason": {}},
        "absent": {},
    }
    assert (report["nodes"]["launched"], report["nodes"]["peak"], report["restarts"]["total"]) == (0, 1, 0)
    assert report["waiting"]["arrivals"]["pods"] == report["waiting"]["stillWaiting"] == 0
    assert report["cost"]["usd"] == pytest.approx(0.35 * 1.2, abs=0.005)
    assert report["cost"]["gapUsd"]["starting"] == report["cost"]["gapUsd"]["empty"] == 0
    (event,) = report["events"]
    assert (event["event"], event["node"], event["hours"]) == ("present", "one", 0)
    assert (report["timeline"][0]["hours"], report["timeline"][0]["nodes"], report["timeline"][0]["pods"]) == (0, 1, 5)
    assert report["nodes"]["cpuRequested"] == pytest.approx(7500 / 7910, abs=0.001)


def test_a_wasteful_cluster_becomes_cheaper_by_moving_its_pods(simulate: Simulate) -> None:
    """Three large nodes with a pod each become small ones."""
    names = ("one", "two", "three")
    objects = [disrupting(), *managed(*names), *(running(f"w-{name}", name) for name in names)]
    report = report_of(simulate("-o", "json", objects=objects))
    assert report["start"]["usdPerHour"] == pytest.approx(1.05)
    assert report["timeline"][-1]["usdPerHour"] <= 0.35
    moved = {name for line in report["decisions"] if line["outcome"] == "succeeded" for name in line["nodes"]}
    assert moved >= {"one", "two"}
    assert report["restarts"]["byCause"] == {"Underutilized": report["restarts"]["total"]}
    assert set(names) <= {event["node"] for event in report["events"] if event["event"] == "present"}


def test_the_page_says_how_the_study_began_and_how_the_cost_went_down(simulate: Simulate) -> None:
    names = ("one", "two", "three")
    objects = [disrupting(), *managed(*names), node("other", owner=""), *(running(f"w-{name}", name) for name in names)]
    page = simulate("--compare", "lean,empty-only", objects=objects).stdout
    assert "start: 3 nodes, 3 pods on nodes, 1 unmanaged, not in the bill" in page
    (later,) = [line.split() for line in page.splitlines() if line.strip().startswith("after 1 h")]
    assert [float(text.lstrip("$")) for text in later[-2:]] == [0.0, 1.05], "three pods have room on the unmanaged node"


def test_a_node_without_pods_is_empty_from_the_start_and_does_not_start(simulate: Simulate) -> None:
    never = pool(disruption={"consolidateAfter": "Never"})
    report = report_of(simulate("-o", "json", objects=[never, *managed("one", "idle"), running("w", "one")]))
    assert report["cost"]["gapUsd"]["starting"] == 0
    assert report["cost"]["gapUsd"]["empty"] == pytest.approx(0.35 * 1.2, abs=0.01)


def test_nodes_are_as_old_as_they_are(simulate: Simulate) -> None:
    """The later of two nodes of the same kind has an hour left of its three."""
    young, old = node("young", created="2026-03-04T10:00:00Z"), node("old", created="2026-03-04T07:30:00Z")
    objects = [
        pool(disruption={"consolidateAfter": "Never"}),
        *(young, old, claim(young, expireAfter="3h"), claim(old, expireAfter="3h")),
        *(running("y", "young"), running("o", "old")),
    ]
    report = report_of(simulate("-o", "json", objects=objects, days="0.1"))
    ended = {event["node"]: event["hours"] for event in report["events"] if event["event"] == "ended"}
    assert list(ended) == ["old"]
    assert ended["old"] == pytest.approx(0.5, abs=0.35)


def test_consolidate_after_counts_from_the_last_pod_that_came_or_went(simulate: Simulate) -> None:
    """Two hours ago, at ten o'clock of the snapshot: a node may go at once with one hour, and not with three."""

    def first_decision(after: str) -> float:
        objects = [disrupting(consolidateAfter=after), *managed("one", "idle"), running("w", "one", "7")]
        report = report_of(simulate("-o", "json", objects=objects, days="0.1"))
        return min((line["hours"] for line in report["decisions"]), default=99.0)

    assert first_decision("1h") < 0.1
    assert 0.9 < first_decision("3h") < 1.2


def test_the_last_heartbeat_tells_when_a_snapshot_was_made(simulate: Simulate) -> None:
    """In a quiet cluster nothing else advances: a month later the node has an hour left of its thirty days."""
    quiet = node("quiet")
    quiet["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-04-03T07:00:00Z"
    objects = [pool(disruption={"consolidateAfter": "Never"}), quiet, claim(quiet, expireAfter="720h")]
    result = simulate("-o", "json", "--compare", "karpenter", objects=[*objects, running("w", "quiet")], days="0.1")
    assert result.stderr.splitlines() == ["ages are as of 2026-04-03 07:00:00 UTC, the latest time in the input"]
    report = report_of(result)
    ended = {event["node"]: event["hours"] for event in report["events"] if event["event"] == "ended"}
    assert ended["quiet"] == pytest.approx(1, abs=0.1)
    assert report["restarts"]["byCause"] == {"Expired": 1}


def test_a_time_in_the_future_makes_no_node_older(simulate: Simulate) -> None:
    wrong, right = node("wrong", created="2099-01-01T00:00:00Z"), node("right")
    claims = [claim(each, expireAfter="720h") for each in (wrong, right)]
    objects = [pool(disruption={"consolidateAfter": "Never"}), wrong, right, *claims]
    result = simulate("-o", "json", objects=[*objects, running("w", "right"), running("v", "wrong")])
    assert result.stderr.splitlines() == ["ages are as of 2026-03-04 10:00:00 UTC, the latest time in the input"]
    assert report_of(result)["restarts"]["total"] == 0


def test_the_ratio_to_a_bound_of_nothing_is_a_dash_on_the_page(simulate: Simulate) -> None:
    page = simulate(objects=[pool(), node("group", owner=""), running("w", "group")]).stdout
    (line,) = [line.split() for line in page.splitlines() if line.strip().startswith("cost / lower bound")]
    assert line[-1] == "\N{EN DASH}"


def test_labels_that_nodes_by_hand_lack_are_those_of_their_instance_type(simulate: Simulate) -> None:
    """Otherwise they would differ from the requirements of their NodePool, and all would be replaced."""
    families = [{"key": "example.com/family", "operator": "In", "values": ["a"]}]
    picky = pool(disruption={"consolidateAfter": "1m"})
    picky["spec"]["template"]["spec"]["requirements"] = families
    objects = [picky, *managed("one"), running("w", "one", "6")]
    report = report_of(simulate("-o", "json", objects=objects))
    assert (report["decisions"], report["restarts"]["total"]) == ([], 0)


def test_a_pod_whose_node_is_not_in_the_input_waits_and_a_line_says_so(simulate: Simulate) -> None:
    result = simulate("-o", "json", objects=[pool(), *managed("one"), running("w", "one"), running("v", "gone")])
    assert notes_of(result) == [
        "1 pod (prod/v): their nodes are not in the input; they wait for a node; add the nodes (kubectl get nodes -o yaml)"
    ]
    assert report_of(result)["waiting"]["arrivals"]["pods"] == 1


def test_unmanaged_nodes_take_pods_stay_and_cost_nothing(simulate: Simulate) -> None:
    objects = [disrupting(), node("group", owner=""), *(running(f"w{n}", "group") for n in range(3)), running("p", "")]
    result = simulate("-o", "json", objects=objects)
    report = report_of(result)
    assert notes_of(result) == []
    assert report["start"]["unmanaged"] == {"total": 1, "byReason": {"of no NodePool": 1}}
    assert (report["cost"]["usd"], report["cost"]["lowerBoundUsd"], report["cost"]["ratio"]) == (0, 0, None)
    assert report["waiting"]["arrivals"]["pods"] == 1, "the pending pod finds room there"
    assert report["waiting"]["stillWaiting"] == 0
    assert report["timeline"][-1]["nodes"] == 0, "the timeline has the nodes of the bill"


def test_the_lower_bound_takes_the_room_of_unmanaged_nodes_into_account(simulate: Simulate) -> None:
    """Eight pods of 1.5 CPU want 12; an unmanaged node has 7.91 of them."""
    never = pool(disruption={"consolidateAfter": "Never"})
    objects = [
        never,
        node("group", owner=""),
        *managed("one"),
        *(running(f"w{n}", "one" if n < 5 else "group") for n in range(8)),
    ]
    start = report_of(simulate("-o", "json", objects=objects))["start"]
    assert start["lowerBoundUsdPerHour"] == pytest.approx((12 - 7.91) * 0.35 / 8, abs=0.001)


def test_pods_for_which_unmanaged_nodes_have_too_little_room_do_not_void_the_bound(simulate: Simulate) -> None:
    """Only the group has the label; two of the three pods that ask for it have room there."""
    group = node("group", owner="")
    group["metadata"]["labels"]["role"] = "infra"
    infra = [running(f"i{n}", "group" if n < 2 else "", "3", owner="infra") for n in range(3)]
    for each in infra:
        each["spec"]["nodeSelector"] = {"role": "infra"}
    objects = [pool(), group, *infra, *managed("one"), *(running(f"w{n}", "one") for n in range(5))]
    report = report_of(simulate("-o", "json", objects=objects))
    assert report["waiting"]["stillWaiting"] == 1
    assert report["start"]["lowerBoundUsdPerHour"] == 0, "7.5 CPU have room on the group where the others wait"
    more = [*objects, *managed("two"), *(running(f"v{n}", "two", owner="more") for n in range(5))]
    start = report_of(simulate("-o", "json", objects=more))["start"]
    assert start["lowerBoundUsdPerHour"] == pytest.approx((15 - 7.91) * 0.35 / 8, abs=0.001)


def test_taints_of_unmanaged_nodes_keep_pods_away_also_in_the_bound(simulate: Simulate) -> None:
    plane = node("plane", owner="")
    plane["spec"]["taints"] = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    report = report_of(simulate("-o", "json", objects=[pool(), plane, running("w", "")]))
    assert report["nodes"]["launched"] == 1
    assert report["cost"]["lowerBoundUsd"] > 0


def test_pods_that_only_an_unmanaged_node_can_hold_are_not_impossible(simulate: Simulate) -> None:
    pinned = running("dns", "group")
    pinned["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "group"}
    report = report_of(simulate("-o", "json", objects=[pool(), node("group", owner=""), pinned]))
    assert report["waiting"]["unschedulable"] == []


def test_a_node_of_an_unknown_type_stays_unmanaged_and_one_line_says_how_to_mend_it(simulate: Simulate) -> None:
    odd = node("odd", "x9.huge")
    objects = [pool(), *managed("one"), odd, claim(odd), running("w", "one"), running("v", "odd")]
    result = simulate("-o", "json", objects=objects)
    assert notes_of(result) == [
        "1 node (odd (x9.huge)): the study does not know their instance types; give --region or --instance-types; until then "
        "they take pods, stay, and are not in the bill"
    ]
    assert report_of(result)["start"]["unmanaged"]["byReason"] == {"the study does not know its instance type": 1}


def test_a_node_of_a_zone_that_is_not_sold_stays_unmanaged(simulate: Simulate) -> None:
    far = node("far")
    far["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-b"
    result = simulate("-o", "json", objects=[pool(), *managed("one"), far, claim(far), running("w", "one")])
    assert "1 node (far (a.large on-demand zone-b)): the study does not sell their instance types" in result.stderr
    assert report_of(result)["start"]["nodes"] == 1


def test_nodes_of_which_none_can_be_simulated_end_the_command(simulate: Simulate) -> None:
    odd = node("odd", "x9.huge")
    result = simulate(objects=[pool(), odd, claim(odd), running("w", "odd")])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(
        "none of the nodes of NodePools can be simulated, such as odd (x9.huge): the study does not know their instance types; "
        "give --region or --instance-types"
    )


def test_nodes_without_nodeclaims_end_the_command_and_the_message_names_what_to_add(simulate: Simulate) -> None:
    result = simulate(objects=[pool(), node("one"), running("w", "one")])
    assert result.exit_code == 2
    assert "they have no NodeClaim in the input; add it (kubectl get nodeclaims -o yaml)" in result.stderr


def test_a_node_that_is_being_deleted_is_left_out_and_its_pods_wait(simulate: Simulate) -> None:
    leaving = managed("leaving")
    leaving[1]["metadata"]["deletionTimestamp"] = TAKEN_AT
    leaving[1]["metadata"]["finalizers"] = ["karpenter.sh/termination"]
    result = simulate(
        "-o", "json", objects=[pool(), *managed("one"), *leaving, running("w", "one"), running("v", "leaving")]
    )
    report = report_of(result)
    assert notes_of(result) == [
        "1 node (leaving): being deleted; the study begins without them, and their pods wait for a node"
    ]
    assert report["start"]["absent"] == {"it is being deleted": 1}
    assert report["waiting"]["arrivals"]["pods"] == 1


def test_a_nodeclaim_without_a_node_is_left_out(simulate: Simulate) -> None:
    result = simulate("-o", "json", objects=[pool(), *managed("one"), claim(node("soon")), running("w", "one")])
    assert notes_of(result) == ["1 NodeClaim (claim-soon): without a Node; the study begins without them"]
    assert report_of(result)["start"]["nodes"] == 1


def test_a_pod_that_waits_for_a_missing_volume_runs_in_the_study_and_a_line_says_so(simulate: Simulate) -> None:
    """One that runs already has its volumes, whatever the input leaves out."""
    claimed = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "nowhere"}}]}
    pods = [running("w", "one"), running("waits", "")]
    for each in pods:
        each["spec"] |= claimed
    result = simulate("-o", "json", objects=[pool(), *managed("one"), *pods])
    assert notes_of(result) == [
        "1 pod (prod/waits): their volumes are missing or cannot be used; in a cluster they wait for them, in the study they "
        "run; add the claims (kubectl get pvc,pv,storageclasses -A -o yaml)"
    ]
    assert report_of(result)["waiting"]["arrivals"]["pods"] == 1


def test_a_node_that_is_not_ready_counts_as_ready_and_a_line_says_so(simulate: Simulate) -> None:
    objects = [pool(disruption={"consolidateAfter": "Never"}), *managed("one"), running("w", "one")]
    objects[1]["status"]["conditions"][0]["status"] = "Unknown"
    objects[1]["spec"]["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
    result = simulate("-o", "json", objects=objects)
    assert notes_of(result) == ["1 node (one): not ready; the study begins with them as if they were"]
    report = report_of(result)
    assert (report["start"]["nodes"], report["restarts"]["total"]) == (1, 0)


def test_the_readiness_of_a_node_is_asked_for_once(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per pair of nodes it took seconds in large clusters."""
    asked: list[str] = []

    class Counting:
        READY = conditions.READY

        @staticmethod
        def is_true(stated: Sequence[Condition], kind: str) -> bool:
            asked.append(kind)
            return conditions.is_true(stated, kind)

    monkeypatch.setattr(starting_cluster, "conditions", Counting)
    never = pool(disruption={"consolidateAfter": "Never"})
    simulate(objects=[never, *managed("one", "two", "three"), running("w", "one")], days="0.01")
    assert asked == ["Ready"] * 3


def test_pods_of_a_daemonset_that_is_not_there_take_their_room_and_a_line_says_so(simulate: Simulate) -> None:
    """Beside the agent of 5 CPU there is no room for the pending pod."""
    agent = running("agent-1", "one", "5", owner="agent", kind="DaemonSet")
    never = pool(disruption={"consolidateAfter": "Never"})
    result = simulate("-o", "json", objects=[never, *managed("one"), agent, running("w", "one"), running("p", "")])
    assert notes_of(result) == [
        "1 DaemonSet (prod/agent): not in the input, but pods of theirs; nodes that are launched have none; "
        "add them (kubectl get daemonsets -A -o yaml)"
    ]
    assert report_of(result)["nodes"]["launched"] == 1


def test_a_nodeclaim_that_has_drifted_from_its_nodepool_is_replaced_and_others_are_not(simulate: Simulate) -> None:
    objects = [disrupting(), *managed("one", "two"), running("w", "one", "6"), running("v", "two", "6")]
    objects[3]["metadata"]["annotations"] = {
        "karpenter.sh/nodepool-hash": "1",
        "karpenter.sh/nodepool-hash-version": "py1",
    }
    report = report_of(simulate("-o", "json", objects=objects))
    drifted = [line["nodes"] for line in report["decisions"] if line["reason"] == "Drifted"]
    assert drifted == [["one"]]


def test_startup_taints_keep_no_pod_away(simulate: Simulate) -> None:
    """In a cluster an agent takes them off. A study has none, and with the taints a pod waited for ever."""
    startup = [{"key": "agent/not-ready", "effect": "NoExecute"}]
    tainted = pool(disruption={"consolidateAfter": "Never"})
    tainted["spec"]["template"]["spec"]["startupTaints"] = startup
    objects = [tainted, *managed("one"), running("w", "one", "5"), running("p", "", "2"), running("q", "", "4")]
    objects[1]["spec"]["taints"] = startup
    objects[2]["spec"]["startupTaints"] = startup
    report = report_of(simulate("-o", "json", objects=objects))
    assert (report["nodes"]["launched"], report["waiting"]["stillWaiting"]) == (1, 0)
    assert not [line for line in report["decisions"] if line["reason"] == "Drifted"]


def test_instances_of_the_start_are_interrupted_like_others(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "world.yaml").write_text("losses: [{perMonth: 0.999999999999999}]\n")
    never = pool(disruption={"consolidateAfter": "Never"})
    objects = [never, *managed("one", "two", "three"), *(running(f"w{n}", n) for n in ("one", "two", "three"))]
    report = report_of(simulate("-o", "json", "--world", str(tmp_path / "world.yaml"), objects=objects, days="1"))
    ended = {event["node"] for event in report["events"] if event["event"] == "ended"}
    assert ended & {"one", "two", "three"}
    assert report["restarts"]["byCause"] == {"NodeLost": report["restarts"]["total"]}


@pytest.mark.parametrize("pattern", ["daily", "office"])
def test_a_pattern_goes_on_from_the_pods_that_are_there(simulate: Simulate, pattern: str) -> None:
    never = pool(disruption={"consolidateAfter": "Never"})
    pods = [running(f"w{n}", f"n{n // 5}") for n in range(20)]
    objects = [never, *managed("n0", "n1", "n2", "n3"), *pods]
    report = report_of(simulate("-o", "json", objects=objects, days="0.6", pattern=pattern))
    first, *later = (sample["pods"] for sample in report["timeline"])
    assert first == 20
    assert max(later[:5]) <= 23
    assert min(later[:5]) >= 17
    assert min(later) < 17 if pattern == "daily" else min(later) == 1


def test_the_same_seed_gives_the_same_report_also_in_other_processes(simulate: Simulate) -> None:
    names = ("one", "two", "three")
    objects = [disrupting(), *managed(*names), node("g", owner=""), *(running(f"w{n}", names[n % 3]) for n in range(9))]
    arguments = ("--compare", "lean,empty-only", "--seeds", "2", "-o", "json")
    first = simulate(*arguments, objects=objects, pattern="daily").stdout
    assert simulate(*arguments, "--executor", "processes:2", objects=objects, pattern="daily").stdout == first
    starts = {json.dumps(report["start"]["usdPerHour"]) for report in json.loads(first)["reports"]}
    assert starts == {"1.05"}


def test_disruption_budgets_hold_for_pods_that_run_from_the_start(simulate: Simulate) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "prod"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }
    objects = [disrupting(), budget, *managed("one", "two"), running("w", "one"), running("v", "two")]
    assert report_of(simulate("-o", "json", objects=objects))["restarts"]["total"] == 0


def test_nodes_beside_a_trace_play_no_part(simulate: Simulate, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("name,creation_s,deletion_s,runtime_s,cpu_milli,memory_mib\nweb,0,1200,,500,512\n")
    (tmp_path / "snapshot.json").write_text(json.dumps(listed(pool(), *managed("one"))))
    given = ["simulate", "-f", str(tmp_path / "snapshot.json"), "--instance-types", str(tmp_path / "types.json")]
    result = CliRunner().invoke(app, [*given, "--trace", str(trace), "-o", "json"], catch_exceptions=False)
    report = report_of(result)
    assert "start" not in report
    assert report["nodes"]["launched"] == 1


def test_a_search_for_settings_begins_with_the_nodes_that_there_are(simulate: Simulate, tmp_path: Path) -> None:
    """The profile pays for three nodes from the first second on, and removes two of them."""
    names = ("one", "two", "three")
    objects = [disrupting(), *managed(*names), *(running(f"w-{name}", name) for name in names)]
    (tmp_path / "snapshot.json").write_text(json.dumps(listed(*objects)))
    (tmp_path / "space.yaml").write_text("profile: lean\nparameters:\n  consolidateAfter: {choices: [1m, 100h]}\n")
    given = ["tune", "-f", str(tmp_path / "snapshot.json"), "--instance-types", str(tmp_path / "types.json")]
    options = ["--space", str(tmp_path / "space.yaml"), "--days", "0.05", "--pattern", "steady", "--trials", "3"]
    result = CliRunner().invoke(
        app, [*given, *options, "--executor", "processes:1", "-o", "json"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.stderr
    figures = {each["usdPerMonth"]["mean"] for each in json.loads(result.stdout)["candidates"]}
    assert max(figures) <= 1.05 * 730
    assert min(figures) < 0.5 * 730
