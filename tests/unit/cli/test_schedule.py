"""``karpenter schedule``, ``karpenter wake`` and ``karpenter sleep``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from karpenter.api import kinds
from karpenter.cli.controller_gates import why_gate_is_off
from karpenter.cli.main import app
from karpenter.cli.sleep_command import send_pools_to_sleep, wake_pools
from karpenter.cli.terminal import CommandError, WrongInput
from karpenter.kube.errors import Forbidden
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.model.feature_gates import FeatureGate
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.manifest_builders import pod, pool

EXAMPLE = "examples/sleep-and-wake.yaml"
_CHRISTMAS = "2026-12-21T00:00:00+09:00"
END = datetime(2026, 10, 6, tzinfo=UTC)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_the_timeline_names_holidays_and_the_last_line_the_saving() -> None:
    """The dates are wall time in Seoul."""
    result = run("schedule", "-f", EXAMPLE, "--from", _CHRISTMAS, "--days", "8")
    assert result.exit_code == 0, result.stderr
    assert "Wed 23 Dec 2026 22:00  Mon 28 Dec 2026 07:00  Asleep" in result.stdout
    assert "extra holiday (24 Dec), Christmas Day (25 Dec)" in result.stdout
    assert "per month at today's prices" in result.stdout


def test_programs_get_the_same_as_data() -> None:
    result = run("schedule", "office-hours", "-f", EXAMPLE, "--from", _CHRISTMAS, "--days", "8", "-o", "json")
    (preview,) = json.loads(result.stdout)
    assert (preview["schedule"], preview["nodePools"]) == ("office-hours", ["dev"])
    assert [segment["state"] for segment in preview["timeline"]] == ["Asleep", "Awake"] * 4 + ["Asleep"]
    assert preview["savingPerMonth"] == pytest.approx(
        preview["pricePerHour"] * preview["asleepFraction"] * 730, rel=1e-3
    )
    assert preview["pricePerHour"] > 0


SECOND_SCHEDULE = """
apiVersion: karpenter.sh/v1alpha1
kind: CapacitySchedule
metadata: {name: weekend-batch}
spec:
  nodePools: {names: [dev]}
  timeZone: Asia/Seoul
  windows: [{name: saturday, days: sat, from: "00:00", until: "12:00", state: Awake}]
  otherwise: Asleep
"""


def test_a_node_pool_in_two_schedules_is_awake_while_one_of_them_is_and_both_say_so(tmp_path: Path) -> None:
    second = tmp_path / "second.yaml"
    second.write_text(SECOND_SCHEDULE)
    words = ("schedule", "-f", EXAMPLE, "-f", str(second), "--from", _CHRISTMAS, "--days", "8")
    page = " ".join(run(*words).stdout.split())
    assert "NodePool dev is also in weekend-batch: it is awake while one of them is, " in page
    assert "NodePool dev is also in office-hours: it is awake while one of them is, " in page
    previews = {each["schedule"]: each for each in json.loads(run(*words, "-o", "json").stdout)}
    office, weekend = previews["office-hours"], previews["weekend-batch"]
    (overlap,) = office["overlaps"]
    assert (overlap["nodePool"], overlap["schedules"]) == ("dev", ["weekend-batch"])
    # Twelve of 168 hours, and none of them are office hours.
    assert weekend["asleepFraction"] == pytest.approx(1 - 12 / 168, abs=1e-3)
    assert overlap["asleepFraction"] == pytest.approx(office["asleepFraction"] - 12 / 168, abs=1e-3)
    assert office["savingPerMonth"] == weekend["savingPerMonth"]


def test_a_schedule_that_cannot_be_evaluated_does_not_hide_another_one(tmp_path: Path) -> None:
    second = tmp_path / "second.yaml"
    second.write_text(SECOND_SCHEDULE.replace("Asia/Seoul", "Asia/Nowhere"))
    words = ("-f", EXAMPLE, "-f", str(second), "--from", _CHRISTMAS, "--days", "8")
    assert run("schedule", "office-hours", *words).exit_code == 0
    broken = run("schedule", "weekend-batch", *words)
    assert (broken.exit_code, "Asia/Nowhere" in broken.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("schedule", "none", "-f", EXAMPLE), "no CapacitySchedule none in the input"),
        (("schedule", "-f", "examples/pool.yaml"), "no CapacitySchedule in the input"),
        (("schedule", "-f", EXAMPLE, "--from", "tomorrow"), "--from:"),
        (("wake", "dev"), "give --for DURATION or --until TIME"),
        (("sleep", "dev", "--for", "1x"), "--for:"),
    ],
)
def test_mistakes_end_in_one_line(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_plan_with_the_gate_leaves_out_what_was_sent_to_sleep_and_one_without_says_that_it_does_not(
    written: Callable[..., Path],
) -> None:
    asleep = pool("dev")
    asleep["metadata"]["annotations"] = {labels.ASLEEP_UNTIL: "2999-01-01T00:00:00Z"}
    file = str(written("a.json", asleep, pod()))
    awake = run("plan", "-f", file)
    assert "NodePool dev: 1 node" in awake.stdout
    assert "NodePool dev is sent to sleep until 2999-01-01T00:00:00Z and counts as awake here" in awake.stderr
    with_gate = run("plan", "-f", file, "--feature-gates", GATES)
    assert "0 new nodes" in with_gate.stdout
    assert "NodePool is asleep" in with_gate.stdout
    assert "counts as awake" not in with_gate.stderr
    assert "asleep" in run("explain", "pod/web", "-f", file, "--feature-gates", GATES).stdout


GATES = "CapacitySchedule=true"


def deployed(**container: object) -> dict[str, Any]:
    """The controller's Deployment as the chart and the manifests label it."""
    metadata = {"name": "karpenter", "namespace": "kube-system", "labels": {"app.kubernetes.io/name": "karpenter"}}
    spec = {"template": {"spec": {"containers": [{"name": "controller", **container}]}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "FEATURE_GATES", "value": f"NodeRepair=true,{GATES}"}]},
        {"args": ["--feature-gates", GATES]},
        {"args": [f"--feature-gates={GATES}"]},
        {"envFrom": [{"configMapRef": {"name": "settings"}}]},
        {"env": [{"name": "FEATURE_GATES", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "gates"}}}]},
    ],
)
async def test_wake_and_sleep_go_ahead_where_the_controller_has_or_may_have_the_gate(
    container: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    server = MemoryServer(SystemClock())
    server.load_objects([pool("dev"), deployed(**container)])
    assert await send_pools_to_sleep(MemoryKube(server), ["dev"], END)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("value", ["", "NodeRepair=true", "CapacitySchedule=false", "CapacitySchedule"])
async def test_wake_and_sleep_are_refused_where_the_controller_would_not_read_them(value: str) -> None:
    server = MemoryServer(SystemClock())
    server.load_objects([pool("dev"), deployed(env=[{"name": "FEATURE_GATES", "value": value}])])
    kube = MemoryKube(server)
    for change in (send_pools_to_sleep(kube, ["dev"], END), wake_pools(kube, ["dev"], END, "")):
        with pytest.raises(CommandError) as refused:
            await change
        assert str(refused.value) == (
            "Deployment kube-system/karpenter has the feature gate CapacitySchedule off, so this would have no effect; "
            "set CapacitySchedule=true in its FEATURE_GATES first"
        )
        assert await why_gate_is_off(kube, FeatureGate.CAPACITY_SCHEDULE) == str(refused.value), "for the console"
    assert not (await kube.get(kinds.NODE_POOL, "dev")).metadata.annotations


async def test_where_no_deployment_shows_the_gate_that_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    server = MemoryServer(SystemClock())
    server.load_objects([pool("dev")])
    assert await send_pools_to_sleep(MemoryKube(server), ["dev"], END)
    assert capsys.readouterr().err == (
        "note: no Deployment of the controller was found; only with its feature gate CapacitySchedule this has an effect\n"
    )


async def test_a_controller_that_may_not_be_read_is_not_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    server = MemoryServer(SystemClock())
    server.load_objects([pool("dev")])
    server.inject_fault(Forbidden("deployments.apps is forbidden"), verb="list", plural="deployments")
    assert await send_pools_to_sleep(MemoryKube(server), ["dev"], END)
    assert capsys.readouterr().err == (
        "note: the Deployment of the controller could not be read (deployments.apps is forbidden); "
        "only with its feature gate CapacitySchedule this has an effect\n"
    )


async def test_wake_and_sleep_end_each_other_and_know_the_pools() -> None:
    server = MemoryServer(SystemClock())
    server.load_objects([pool("dev")])
    kube = MemoryKube(server)

    async def notes() -> dict[str, str]:
        return dict((await kube.get(kinds.NODE_POOL, "dev")).metadata.annotations)

    lines = await wake_pools(kube, ["dev"], END, "release")
    assert lines == ["NodePool dev is kept awake until 2026-10-06T00:00:00Z"]
    assert await notes() == {labels.KEEP_AWAKE_UNTIL: "2026-10-06T00:00:00Z", labels.KEEP_AWAKE_REASON: "release"}
    await send_pools_to_sleep(kube, ["dev"], END)
    assert await notes() == {labels.ASLEEP_UNTIL: "2026-10-06T00:00:00Z"}
    with pytest.raises(WrongInput, match="no NodePool prod in the cluster; choose dev"):
        await wake_pools(kube, ["prod"], END, "")
