"""Scenarios: what their generators make, and what is said of a bad file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from karpenter.api.meta import LabelSelector
from karpenter.cli.main import app
from karpenter.model import quantity
from karpenter.simulator.scenario_file import packaged_scenarios, read_scenario, scenario_schema, scenario_workload
from karpenter.simulator.workload import Workload, WorkloadError

HOUR, DAY = 3600, 86_400


def workload_of(tmp_path: Path, generator: str, days: float, seed: int = 1) -> Workload:
    file = tmp_path / "scenario.yaml"
    file.write_text(f"workloads:\n  - {generator}\n")
    return scenario_workload(read_scenario(str(file)), "scenario", seed, days)


def running(workload: Workload, second: int) -> int:
    """How many pods are there at a moment, if none waits."""
    spans = (life.presence_seconds(workload.duration_seconds) for life in workload.pods)
    return sum(begin <= second < end for begin, end in spans)


def test_a_daily_wave_is_highest_at_its_peak_hour_and_lowest_half_a_day_later(tmp_path: Path) -> None:
    wave = "{kind: dailyWave, name: web, replicas: 40, amplitude: 0.5, peakHour: 14, noise: 0}"
    workload = workload_of(tmp_path, wave, 2)
    assert [running(workload, day * DAY + 14 * HOUR) for day in (0, 1)] == [60, 60]
    assert [running(workload, day * DAY + 2 * HOUR) for day in (0, 1)] == [20, 20]


def test_office_hours_run_on_weekdays_only(tmp_path: Path) -> None:
    hours = "{kind: officeHours, name: dev, replicas: 10, outside: 1, fromHour: 8, toHour: 18}"
    workload = workload_of(tmp_path, hours, 7)
    assert [running(workload, day * DAY + 12 * HOUR) for day in range(7)] == [10, 10, 10, 10, 10, 1, 1]
    assert [running(workload, day * DAY + 20 * HOUR) for day in range(7)] == [1] * 7


def test_a_roll_out_replaces_every_pod_and_keeps_the_service_at_its_size(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, "{kind: rollOuts, name: shop, replicas: 8, everyHours: 6, minutes: 20}", 2)
    assert min(running(workload, second) for second in range(0, 2 * DAY, 60)) == 8
    assert len(workload.pods) % 8 == 0
    assert len(workload.pods) > 16


def test_pods_are_of_controllers_and_of_revisions_as_in_a_cluster(tmp_path: Path) -> None:
    """Shares of a workload on one node, siblings and roll-outs are told by owners."""

    def owners(generator: str, days: float = 1) -> list[str]:
        lives = workload_of(tmp_path, generator, days).pods
        return [f"{life.template.owner.kind}/{life.template.owner.name}" for life in lives if life.template.owner]

    assert set(owners("{kind: dailyWave, name: web}")) == {"ReplicaSet/web-1"}
    rolled_out = Counter(owners("{kind: rollOuts, name: shop, replicas: 8, everyHours: 6, minutes: 20}", 2))
    assert len(rolled_out) > 2
    assert set(rolled_out.values()) == {8}
    assert len(set(owners("{kind: batchBursts, name: job, jobs: 5}"))) % 5 == 0
    assert set(owners("{kind: cronJob, name: export, jobs: 3, everyHours: 12}")) == {"Job/export-0", "Job/export-720"}
    assert set(owners("{kind: statefulSet, name: db}")) == {"StatefulSet/db"}


def test_cron_jobs_start_on_the_hour(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, "{kind: cronJob, name: export, jobs: 3, everyHours: 2}", 0.5)
    assert [life.arrives_at_seconds for life in workload.pods] == [h * HOUR for h in range(0, 12, 2) for _ in range(3)]
    assert all(life.runs_for_seconds is not None for life in workload.pods)


def test_replicas_of_a_stateful_set_keep_their_zones_over_restarts(tmp_path: Path) -> None:
    service = "{kind: statefulSet, name: db, replicas: 4, zones: [a, b], restartEveryHours: 12}"
    workload = workload_of(tmp_path, service, 5)
    zones = {
        (life.name.split("-")[1], life.template.spec.node_selector["topology.kubernetes.io/zone"])
        for life in workload.pods
    }
    assert zones == {("0", "a"), ("1", "b"), ("2", "a"), ("3", "b")}
    assert {running(workload, second) for second in range(60, 5 * DAY, 600)} == {4}
    assert 12 < len(workload.pods) < 120


def test_an_autoscaled_service_stays_within_its_bounds_and_moves(tmp_path: Path) -> None:
    service = "{kind: hpa, name: api, replicas: 10, minReplicas: 8, maxReplicas: 12, volatility: 0.5}"
    workload = workload_of(tmp_path, service, 1)
    levels = {running(workload, second) for second in range(0, DAY, 300)}
    assert levels <= set(range(8, 13))
    assert len(levels) > 1


def test_bursts_bring_their_jobs_at_one_moment_and_drips_one_by_one(tmp_path: Path) -> None:
    bursts = workload_of(tmp_path, "{kind: batchBursts, name: b, jobs: 7, perDay: 4}", 10)
    moments = [life.arrives_at_seconds for life in bursts.pods]
    assert {moments.count(moment) for moment in set(moments)} == {7}
    assert 20 < len(set(moments)) < 60
    drips = workload_of(tmp_path, "{kind: drips, name: d, perHour: 6}", 10)
    assert 1200 < len(drips.pods) < 1700


def test_the_seed_decides_and_a_further_workload_changes_nothing_of_the_others(tmp_path: Path) -> None:
    first = "{kind: drips, name: d, perHour: 6}"
    assert workload_of(tmp_path, first, 2) == workload_of(tmp_path, first, 2)
    assert workload_of(tmp_path, first, 2) != workload_of(tmp_path, first, 2, seed=2)
    both = workload_of(tmp_path, f"{first}\n  - {{kind: cronJob, name: c}}", 2)
    assert tuple(life for life in both.pods if life.template.workload == "d") == workload_of(tmp_path, first, 2).pods


def test_the_example_of_services_has_pods_for_150_to_300_nodes_of_eight_cpu_all_day() -> None:
    example = Path(__file__).resolve().parents[3] / "examples" / "simulations" / "services.yaml"
    workload = scenario_workload(read_scenario(str(example)), "services", 1, 1.0)
    for hour in range(0, 24, 6):
        running = [
            life
            for life in workload.pods
            if life.arrives_at_seconds <= hour * 3600 < (life.leaves_at_seconds or workload.duration_seconds)
        ]
        cpu = sum(int(quantity.parse_milli(life.template.requests["cpu"])) for life in running) / 1000
        assert 1_200 < cpu < 2_400


@pytest.mark.parametrize("name", packaged_scenarios())
def test_packaged_scenarios_are_read_and_agree_with_the_schema(name: str) -> None:
    scenario = read_scenario(name)
    assert scenario.description
    assert scenario_workload(scenario, name, 1, 1).pods
    text = Path(__file__).parents[3] / "src" / "karpenter" / "simulator" / "scenarios" / f"{name}.yaml"
    jsonschema.validate(yaml.safe_load(text.read_text()), scenario_schema())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("days: 7\n", "line 1: Object missing required field `workloads`"),
        ("workloads: []\n", "line 1: workloads: Expected `array` of length >= 1"),
        (
            "workloads:\n- {kind: tide, name: a}\n",
            "line 2: workloads[0].kind: Invalid value 'tide'; choose batchBursts, ",
        ),
        ("workloads:\n- kind: drips\n  name: a\n  perHuor: 2\n", "line 4: there is no field 'perHuor'"),
        (
            "workloads:\n- kind: drips\n  name: a\n  perHour: -2\n",
            "line 4: workloads[0].perHour: Expected `float` > 0.0",
        ),
        ("workloads:\n- kind: drips\n  name: a\n  cpu: lots\n", "line 4: cpu: "),
        (
            "workloads:\n- {kind: drips, name: a}\n- {kind: drips, name: a}\n",
            "line 3: a workload 'a' stands in it already",
        ),
        (
            "workloads:\n- kind: drips\n  name: a\n  podAffinity: [{topologyKey: zone, workload: b}]\n",
            "line 4: podAffinity: there is no workload 'b' in it",
        ),
        ("workloads: [\n", "line 2: cannot be read as YAML"),
        ("", "nothing in it; expected a YAML object with the fields workloads, "),
        ("workload: []\n", "line 1: there is no field 'workload'; the fields are workloads, world, days"),
    ],
)
def test_a_bad_scenario_is_refused_with_the_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as error:
        read_scenario(str(file))
    assert str(error.value).startswith(f"{file}: {complaint}")


def test_pods_say_what_they_ask_of_pods_of_their_own_and_of_other_workloads(tmp_path: Path) -> None:
    text = """
workloads:
  - {kind: drips, name: cache}
  - kind: rollOuts
    name: web
    topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}]
    podAntiAffinity: [{topologyKey: kubernetes.io/hostname}]
    podAffinity: [{topologyKey: topology.kubernetes.io/zone, workload: cache, weight: 50}]
"""
    (tmp_path / "s.yaml").write_text(text)
    scenario = read_scenario(str(tmp_path / "s.yaml"))
    jsonschema.validate(yaml.safe_load(text), scenario_schema())
    workload = scenario_workload(scenario, "s", 1, 0.1)
    web = next(life.template.pod("web") for life in workload.pods if life.template.workload == "web")
    (spread,) = web.spec.topology_spread_constraints
    assert (spread.max_skew, spread.when_unsatisfiable) == (1, "ScheduleAnyway")
    assert spread.label_selector == LabelSelector(match_labels={"app": "web"})
    assert web.metadata.labels["app"] == "web"
    affinity = web.spec.affinity
    assert affinity is not None
    assert affinity.pod_anti_affinity is not None
    assert affinity.pod_affinity is not None
    (apart,) = affinity.pod_anti_affinity.required
    assert (apart.topology_key, apart.label_selector) == ("kubernetes.io/hostname", spread.label_selector)
    (beside,) = affinity.pod_affinity.preferred
    assert (beside.weight, beside.pod_affinity_term.label_selector) == (
        50,
        LabelSelector(match_labels={"app": "cache"}),
    )
    cache = next(life.template for life in workload.pods if life.template.workload == "cache")
    assert (cache.spec.affinity, cache.spec.topology_spread_constraints) == (None, ())


def test_an_unknown_name_lists_the_packaged_scenarios() -> None:
    with pytest.raises(WorkloadError, match=r"there is no scenario 'wep'; choose batch, office, web, or a YAML file"):
        read_scenario("wep")


def test_a_topology_key_that_no_node_has_is_refused_and_the_message_names_those_there_are(tmp_path: Path) -> None:
    """Pods would wait for ever, and nothing would say why."""
    (tmp_path / "s.yaml").write_text(
        "workloads:\n- {kind: drips, name: a, topologySpreadConstraints: [{topologyKey: zone}]}\n"
    )
    given = ["simulate", "--scenario", str(tmp_path / "s.yaml"), "--days", "0.01"]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert result.exit_code == 2
    assert "workload a: topologySpreadConstraints: nodes have no label 'zone'; choose one of " in result.stderr
    assert "topology.kubernetes.io/zone, " in result.stderr
