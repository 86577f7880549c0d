"""``karpenter plan --at``: the plan for another moment, when NodePools may sleep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli.main import app

_EXAMPLE = Path("examples/sleep-and-wake.yaml")
#: A Wednesday at noon, and the night that follows.
_DAY, _NIGHT = "2026-12-23T12:00:00+09:00", "2026-12-23T23:00:00+09:00"
_PROD = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: prod}
spec:
  weight: 1
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
"""


def _run(at: str, folder: Path, *changes: tuple[str, str], more: str = "") -> Result:
    """The plan of the example with texts replaced, and with further manifests."""
    text = _EXAMPLE.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "cluster.yaml"
    file.write_text(f"{text}---{more}" if more else text, encoding="utf-8")
    return CliRunner().invoke(app, ["plan", "-f", str(file), "--at", at, "-o", "json"])


def _plan(at: str, folder: Path, *changes: tuple[str, str], more: str = "") -> dict[str, Any]:
    result = _run(at, folder, *changes, more=more)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def _is_asleep(plan: dict[str, Any]) -> bool:
    """Whether the pool launches nothing, and every pod waits for it to wake."""
    reasons = {reason["message"] for left in plan["unschedulable"] for reason in left["reasons"]}
    asleep = bool(reasons) and all("(NodePool is asleep: " in reason for reason in reasons)
    assert asleep == (not plan["nodeClaims"])
    return asleep


@pytest.mark.parametrize(
    ("at", "is_asleep"),
    [
        pytest.param(_DAY, False, id="a working day"),
        pytest.param("2026-12-24T12:00:00+09:00", True, id="an extra holiday"),
        pytest.param("2026-12-25T12:00:00+09:00", True, id="a public holiday"),
        pytest.param("2026-12-26T12:00:00+09:00", True, id="a Saturday"),
        pytest.param("2026-12-23T21:59:59+09:00", False, id="the last second of the window"),
        pytest.param("2026-12-23T22:00:00+09:00", True, id="its end"),
        pytest.param("2026-12-23T06:54:59+09:00", True, id="before capacity is ordered ahead"),
        pytest.param("2026-12-23T06:55:00+09:00", False, id="five minutes before the window"),
        pytest.param("2026-12-23T03:00:00Z", False, id="the working day in UTC"),
    ],
)
def test_a_pool_launches_in_its_windows_and_not_outside_of_them(at: str, is_asleep: bool, tmp_path: Path) -> None:
    assert _is_asleep(_plan(at, tmp_path)) == is_asleep


def test_pods_that_wait_for_a_schedule_show_it_with_its_end(tmp_path: Path) -> None:
    """Over the extra holiday, Christmas and the weekend."""
    plan = _plan("2026-12-24T12:00:00+09:00", tmp_path)
    messages = {reason["message"] for left in plan["unschedulable"] for reason in left["reasons"]}
    assert messages == {
        "no dynamic nodepools found (NodePool is asleep: CapacitySchedule office-hours until 2026-12-28T07:00:00+09:00)"
    }


def test_pods_go_to_a_pool_that_does_not_sleep(tmp_path: Path) -> None:
    """The heavier pool sleeps; by day its nodes are cheaper and taken."""
    heavier = ("spec:\n  limits:", "spec:\n  weight: 50\n  limits:")
    assert {claim["nodePool"] for claim in _plan(_DAY, tmp_path, heavier, more=_PROD)["nodeClaims"]} == {"dev"}
    plan = _plan(_NIGHT, tmp_path, heavier, more=_PROD)
    assert {claim["nodePool"] for claim in plan["nodeClaims"]} == {"prod"}
    assert plan["unschedulable"] == []


@pytest.mark.parametrize(("until", "is_asleep"), [("2026-12-23T23:30:00+09:00", False), (_NIGHT, True)])
def test_a_pool_that_is_kept_awake_launches_until_then(until: str, is_asleep: bool, tmp_path: Path) -> None:
    """What `karpenter wake` writes counts at that moment, not now."""
    kept = (
        "  labels: {env: dev}",
        f"  labels: {{env: dev}}\n  annotations: {{karpenter.sh/keep-awake-until: '{until}'}}",
    )
    assert _is_asleep(_plan(_NIGHT, tmp_path, kept)) == is_asleep


def test_of_overlapping_schedules_the_one_that_is_awake_wins(tmp_path: Path) -> None:
    late = """
apiVersion: karpenter.sh/v1alpha1
kind: CapacitySchedule
metadata: {name: late-shift}
spec:
  nodePools: {names: [dev]}
  timeZone: Asia/Seoul
  windows: [{name: late, days: mon-fri, from: "20:00", until: "23:59"}]
"""
    assert not _is_asleep(_plan(_NIGHT, tmp_path, more=late))
    assert _is_asleep(_plan("2026-12-24T05:00:00+09:00", tmp_path, more=late))


def test_the_hour_that_a_clock_change_repeats_is_two_moments(tmp_path: Path) -> None:
    """In Berlin 02:30 comes twice on 25 October 2026: awake before 02:30 the first time, still at 02:15 the second."""
    berlin = (
        ("Asia/Seoul", "Europe/Berlin"),
        ('days: mon-fri, from: "07:00", until: "22:00"', 'days: sun, from: "00:00", until: "03:00"'),
        ("country: KR", "country: DE"),
    )
    for at, is_asleep in (
        ("2026-10-25T02:15:00+02:00", False),
        ("2026-10-25T02:15:00+01:00", False),
        ("2026-10-25T03:00:00+01:00", True),
    ):
        assert _is_asleep(_plan(at, tmp_path, *berlin)) == is_asleep, at


def test_without_a_schedule_a_moment_changes_nothing(tmp_path: Path) -> None:
    awake = ("nodePools: {matchLabels: {env: dev}}", "nodePools: {names: [another]}")
    night, day = (_plan(at, tmp_path, awake) for at in (_NIGHT, _DAY))
    assert night["nodeClaims"] == day["nodeClaims"]
    assert night["nodeClaims"]


@pytest.mark.parametrize("at", ["tomorrow", "2026-12-23T12:00:00", "2026-13-01T00:00:00Z", "12:00"])
def test_a_moment_that_is_none_is_wrong_input(at: str, tmp_path: Path) -> None:
    """A date needs its offset to UTC: the plan of another hour would be as silent as wrong."""
    result = _run(at, tmp_path)
    assert (result.exit_code, result.stderr.startswith("--at: ")) == (2, True), result.stderr


def test_a_schedule_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    result = _run(_DAY, tmp_path, ("timeZone: Asia/Seoul", "timeZone: Asia/Soul"))
    assert result.exit_code == 2
    assert "CapacitySchedule office-hours: " in result.stderr
    assert "Asia/Soul" in result.stderr


@pytest.mark.parametrize(("node_label", "is_asleep"), [("karpenter.sh/nodepool: dev", False), ("team: a", True)])
def test_a_pod_that_asks_for_it_keeps_the_pool_of_its_node_awake(
    node_label: str, is_asleep: bool, tmp_path: Path
) -> None:
    """The annotation karpenter.sh/keep-awake-until counts in plans as in the controller; on a node of others it does not."""
    node = f"\napiVersion: v1\nkind: Node\nmetadata: {{name: n, labels: {{{node_label}}}}}\n"
    pod = """---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {karpenter.sh/keep-awake-until: "2026-12-24T00:00:00Z"}}
spec: {nodeName: n, containers: [{name: a}]}
status: {phase: Running}
"""
    assert bool(_plan(_NIGHT, tmp_path, more=node + pod)["nodeClaims"]) == (not is_asleep)
