"""What ``karpenter plan`` prints: a page for people, JSON and YAML for programs."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from karpenter.api.crds import to_yaml
from karpenter.cli.main import COMMANDS, app
from karpenter.cli.render_common import SHOWN_ENTRIES
from karpenter.scheduling.packing import open_claims
from support.installed_program import KARPENTER
from support.manifest_builders import Json, Plan, pod, pool, type_of
from support.plan_json_checker import faults

Written = Callable[..., Path]


@pytest.fixture
def mixed(written: Written) -> Path:
    """Pods that fit and one nothing holds."""
    return written("mixed.json", pool(), pod("web-0", "3"), pod("web-1", "3"), pod("huge", "64"))


def test_json_has_exactly_the_agreed_members(plan: Plan, mixed: Path) -> None:
    loads = json.loads(plan("-f", mixed, "-o", "json").stdout)
    assert list(loads) == [
        "formatVersion", "nodeClaims", "existingNodes", "unschedulable", "exposure", "cost", "capacityBuffers", "gangs",
        "limitIncreases", "packingFallback", "prices", "timings",
    ]  # fmt: skip
    assert loads["formatVersion"] == "1.2"
    assert list(loads["timings"]) == ["decisionSeconds", "catalogueSeconds", "wallSeconds"]
    assert list(loads["cost"]) == [
        "perHour",
        "cpuSurplusPerHour",
        "lowerBoundPerHour",
        "gap",
        "optimal",
        "nodeShareCostPerHour",
        "nodeShareSavingPerHour",
    ]
    (claim,) = loads["nodeClaims"]
    assert list(claim) == ["name", "nodePool", "instanceTypes", "cheapest", "requirements", "requests", "pods"]
    assert claim["cheapest"] == {
        "instanceType": "a.large", "zone": "zone-a", "capacityType": "on-demand", "price": 0.35, "cpuSurplus": 0,
    }  # fmt: skip
    assert claim["instanceTypes"] == ["a.large", "b.large"]
    assert claim["requests"] == {"cpu": "6", "memory": "512Mi", "pods": "2"}
    assert {tuple(requirement) for requirement in claim["requirements"]} == {("key", "operator", "values")}
    (waiting,) = loads["unschedulable"]
    assert list(waiting) == ["pod", "reasons", "sentence", "nearestFit", "nearestExistingNode"]
    assert {tuple(reason) for reason in waiting["reasons"]} == {
        ("nodePool", "category", "message", "types", "nearestFit")
    }
    assert 0 < loads["timings"]["decisionSeconds"] < loads["timings"]["wallSeconds"]


def test_yaml_says_the_same_as_json(plan: Plan, mixed: Path) -> None:
    from_json = json.loads(plan("-f", mixed, "-o", "json").stdout)
    from_yaml = yaml.safe_load(plan("-f", mixed, "-o", "yaml").stdout)
    parts = ("nodeClaims", "existingNodes", "unschedulable", "cost")
    assert [from_yaml[part] for part in parts] == [from_json[part] for part in parts]


def test_the_page_names_nodes_waiting_pods_reasons_and_cost(plan: Plan, mixed: Path) -> None:
    page = plan("-f", mixed).stdout
    assert "\x1b" not in page
    (row,) = [line.split() for line in page.splitlines() if "a.large " in line and "zone-a" in line]
    assert row == ["1", "a.large", "zone-a", "on-demand", "0.3500", "0.350", "2"]
    assert "NodePool default: 1 node, $0.350 per hour" in page
    assert "cpu ████░░ 75% memory ░░░░░░ 3% pods ░░░░░░ 2%" in " ".join(page.split())
    assert (
        "1 pod (default/huge)\n    nearest is NodePool default: the pod is 56 CPU short on a.large, the largest" in page
    )
    assert "\n    nodepool default: no instance type has enough resources\n" in page
    assert "$0.350 per hour for 1 new node with 2 pods; 1 pod unschedulable" in page
    assert "optimal: no other nodes for them cost less, node fees included" in page


def test_the_page_says_what_is_paid_for_and_requested_by_nobody(plan: Plan, mixed: Path) -> None:
    """8 cores and 16 GiB, counting as 2 cores, share 0.35 USD: 0.28 and 0.07, of which 6 cores and 0.5 GiB are requested."""
    page = plan("-f", mixed).stdout
    assert "Unrequested capacity, $/h: 0.138 (39.4%)" in page
    assert ["1", "a.large", "0.070", "0.068", "0.138"] in [line.split() for line in page.splitlines()]


def many(count: int) -> list[Json]:
    """As many pools as pods, each pod on its own."""
    result: list[Json] = []
    for number in range(count):
        name = f"a-pool-with-a-rather-long-name-{number:02}"
        result += [pool(name), pod(f"p{number}", "7", nodeSelector={"karpenter.sh/nodepool": name})]
    return result


def test_a_long_plan_is_cut_and_says_how_much_is_left_out(plan: Plan, written: Written) -> None:
    page = plan("-f", written("a.json", *many(SHOWN_ENTRIES + 3))).stdout
    assert page.count("NodePool a-pool") == SHOWN_ENTRIES
    assert "... and 3 more groups: 3 nodes, $1.050 per hour" in page
    assert f"... and {SHOWN_ENTRIES + 3 - 5} more" in page


def test_the_page_needs_80_columns_and_no_more(plan: Plan, written: Written) -> None:
    page = plan("-f", written("a.json", *many(3))).stdout
    assert max(len(line) for line in page.splitlines()) <= 80


def test_a_long_name_of_a_type_gives_way_on_a_narrow_page(written: Written, tmp_path: Path) -> None:
    types = tmp_path / "long.json"
    types.write_text(json.dumps([type_of("a." + "very-" * 20 + "large", 8, 16, 0.35)]))
    arguments = ["plan", "--instance-types", str(types), "-f", str(written("a.json", pool(), pod()))]
    page = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    (row,) = [line for line in page.splitlines() if "on-demand" in line]
    assert (len(row), ".. " in row) == (80, True)


def test_without_a_terminal_that_knows_them_bars_are_plain_letters(mixed: Path, types: Path) -> None:
    with process("plan", "-f", mixed, "--instance-types", types, PYTHONIOENCODING="ascii") as running:
        output, _ = running.communicate()
    assert "cpu ####..  75%" in output


def test_nodes_launched_the_same_way_share_a_line(plan: Plan, written: Written) -> None:
    page = plan("-f", written("a.json", pool(), *(pod(f"p{number}", "7") for number in range(3)))).stdout
    rows = [line.split()[:2] for line in page.splitlines() if "a.large" in line and "on-demand" in line]
    assert rows == [["3", "a.large"]]


def test_a_limit_that_leaves_several_pods_out_is_reported_with_an_amount_that_is_enough_for_all(
    plan: Plan, written: Written
) -> None:
    """One pod lacks a node of its own; what all of them lack together is another amount."""
    file = written("limited.json", pool(limits={"cpu": "8"}), *(pod(f"web-{number}", "3") for number in range(5)))
    (increase,) = json.loads(plan("-f", file, "-o", "json").stdout)["limitIncreases"]
    assert increase == {"nodePool": "default", "resource": "cpu", "amount": "16", "pods": 3}
    sentence = "With a limit of cpu 16 CPU higher, NodePool default has nodes for all 3 pods that it leaves out."
    assert sentence in " ".join(plan("-f", file).stdout.split())


def test_pods_that_are_not_packed_as_requested_are_reported(
    plan: Plan, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``fewest-pods`` is bounded in its work; beyond that pods are packed the classic way, and the plan says so."""
    file = written("a.json", pool(), *(pod(f"web-{number}", "3") for number in range(4)))
    sentence = "packed first-fit decreasing, not fewest-pods: too many pods and nodes to try each pod on each node"
    for tries, cause in ((100, None), (1, "TooMuchWork")):
        monkeypatch.setattr(open_claims, "MAX_TRIES", tries)
        loads = json.loads(plan("-f", file, "--packing", "fewest-pods", "-o", "json").stdout)
        assert (loads["packingFallback"], loads["unschedulable"]) == (cause, [])
        page = " ".join(plan("-f", file, "--packing", "fewest-pods").stdout.split())
        assert (sentence in page) is (cause is not None)
    assert json.loads(plan("-f", file, "-o", "json").stdout)["packingFallback"] is None


def test_a_plan_with_nothing_to_do_says_so(plan: Plan, written: Written) -> None:
    assert "nothing to launch" in plan("-f", written("a.json", pool())).stdout


def test_a_pool_that_takes_no_part_is_named_with_the_reason(plan: Plan, written: Written) -> None:
    result = plan("-f", written("a.json", pool("fixed", replicas=2), pool(), pod()), "-o", "json")
    assert result.stderr.startswith("NodePool fixed is static: 2 nodes by spec.replicas")
    assert len(json.loads(result.stdout)["nodeClaims"]) == 1


def test_min_values_policy_decides_whether_a_pool_out_of_reach_is_used(plan: Plan, written: Written) -> None:
    """SCH-021: the policy is an option of the pass."""
    wanted = [{"key": "example.com/family", "operator": "Exists", "minValues": 3}]
    diverse = pool()
    diverse["spec"]["template"]["spec"]["requirements"] = wanted
    file = written("a.json", diverse, pod())
    strict = json.loads(plan("-f", file, "-o", "json").stdout)
    relaxed = json.loads(plan("-f", file, "-o", "json", "--min-values-policy", "BestEffort").stdout)
    assert (len(strict["nodeClaims"]), len(relaxed["nodeClaims"])) == (0, 1)


def test_a_fee_makes_nodes_fewer_and_prices_are_shown_without_it(written: Written, tmp_path: Path) -> None:
    types = tmp_path / "steep.json"
    types.write_text(json.dumps([type_of("a.small", 2, 8, 0.1), type_of("a.large", 4, 16, 0.3)]))
    file = written("a.json", pool(), *(pod(f"web-{number}", "2") for number in range(2)))
    arguments = ["plan", "--instance-types", str(types), "-f", str(file), "-o", "json", "--node-fee"]
    for fee, launched, price in (("0", 2, 0.2), ("0.2", 1, 0.3)):
        loads = json.loads(CliRunner().invoke(app, [*arguments, fee]).stdout)
        assert (len(loads["nodeClaims"]), loads["cost"]["perHour"]) == (launched, price)


@pytest.mark.parametrize("fee", ["-1", "nan", "inf", "cheap"])
def test_a_fee_that_is_no_amount_is_refused(plan: Plan, mixed: Path, fee: str) -> None:
    result = plan("-f", mixed, "--node-fee", fee)
    assert (result.exit_code, result.stdout, "--node-fee" in result.stderr) == (2, "", True)


def test_preferences_can_be_ignored(plan: Plan, written: Written) -> None:
    family_term = {"matchExpressions": [{"key": "example.com/family", "operator": "In", "values": ["b"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": family_term}]}
    file = written("a.json", pool(), pod(affinity={"nodeAffinity": preferred}))
    respected = json.loads(plan("-f", file, "-o", "json").stdout)
    ignored = json.loads(plan("-f", file, "-o", "json", "--preference-policy", "Ignore").stdout)
    assert respected["nodeClaims"][0]["instanceTypes"] == ["b.large"]
    assert ignored["nodeClaims"][0]["instanceTypes"][0] == "a.small"


def test_the_legality_check_notices_what_is_illegal(plan: Plan, mixed: Path, types: Path) -> None:
    objects = [load for load in json.loads(mixed.read_text())["items"] if load["metadata"]["name"] != "huge"]
    type_file = json.loads(types.read_text())
    good = {**json.loads(plan("-f", mixed, "-o", "json").stdout), "unschedulable": []}
    assert list(faults(objects, type_file, good)) == []
    for spoil in (
        lambda claim: claim["instanceTypes"].append("a.small"),
        lambda claim: claim["instanceTypes"].reverse(),
        lambda claim: claim["pods"].pop(),
        lambda claim: claim["pods"].append(claim["pods"][0]),
        lambda claim: claim["cheapest"].update(price=0.1),
        lambda claim: claim["cheapest"].update(zone="zone-b"),
        lambda claim: claim["requirements"].append({"key": "example.com/family", "operator": "In", "values": ["b"]}),
    ):
        bad = copy.deepcopy(good)
        spoil(bad["nodeClaims"][0])
        assert list(faults(objects, type_file, bad))


def process(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [KARPENTER, *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reader_that_leaves_early_is_no_error_to_talk_about(written: Written) -> None:
    pods = (pod(f"p{number}") for number in range(2000))
    with process("plan", "-f", written("a.json", *pods), "-o", "json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        assert (
            running.stderr.read() == "no NodePool in the input: nothing can be launched without one; add a NodePool\n"
        )
    assert running.returncode == 141


@pytest.mark.parametrize(
    ("kubeconfig", "words"),
    [
        (None, "which does not exist; correct it or unset it"),
        ("nonsense", "is not a kubeconfig"),
        (
            "{clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: a, user: {}}], "
            "contexts: [{name: a, context: {cluster: a, user: a}}], current-context: a}",
            "cannot reach the API server at http://127.0.0.1:1",
        ),
    ],
    ids=["no file", "no kubeconfig", "no server"],
)
def test_a_cluster_that_cannot_be_asked_is_one_line(tmp_path: Path, kubeconfig: str | None, words: str) -> None:
    file = tmp_path / "config"
    if kubeconfig is not None:
        file.write_text(kubeconfig)
    with process("plan", KUBECONFIG=str(file)) as running:
        output, complaint = running.communicate()
    assert (running.returncode, output, len(complaint.splitlines())) == (1, "", 1)
    assert words in complaint


def test_planning_from_files_needs_neither_the_cluster_client_nor_the_table(mixed: Path, types: Path) -> None:
    """Imports are two thirds of the time of a plan of a small file: what it does not use is not imported."""
    code = (
        "import sys\nfrom karpenter.cli.main import app\n"
        f"app(['plan', '-f', {str(mixed)!r}, '--instance-types', {str(types)!r}, '-o', 'json'], standalone_mode=False)\n"
        "unwanted = ('httpx2', 'asyncio', 'ssl', 'pydantic', 'botocore', 'importlib.metadata', 'karpenter.kube.config',"
        " 'karpenter.conversion.manifests', 'karpenter.instancetypes.overlay_application', 'karpenter.cli.render_plan',"
        " 'karpenter.cli.plan_moment', 'karpenter.capacityschedule.sleep_overrides')\n"
        "print([m for m in unwanted if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_the_definitions_are_printed_as_yaml() -> None:
    assert CliRunner().invoke(app, ["crds"]).stdout == to_yaml()


def test_help_lists_every_command_and_the_version_is_one_line() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert [name for name in COMMANDS if name not in text] == []
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("karpenter ")


def test_the_nearest_fit_comes_first_and_the_requirements_only_on_request(plan: Plan, mixed: Path) -> None:
    short, long = plan("-f", mixed).stdout, plan("-f", mixed, "-v").stdout
    lines = [line.strip() for line in short.splitlines()]
    first = lines.index("1 pod (default/huge)") + 1
    assert lines[first].startswith("nearest is NodePool default: the pod is ")
    assert lines[first + 1] == "nodepool default: no instance type has enough resources"
    assert "requirements=" not in short
    assert "requirements=" in long


def test_the_nearest_fit_lists_and_counts_the_values_that_exist_for_the_rest_of_the_pod(
    written: Written, tmp_path: Path
) -> None:
    """Families whose types are too small for the pod are no way out for it."""
    large = [type_of(f"{family}.large", 16, 64, 1.0) for family in "cdefg"]
    types = written("families.json", json.dumps([type_of("a.small", 2, 4, 0.1), *large]))
    asked = pod("web", "9", nodeSelector={"example.com/family": "z"})
    arguments = ["plan", "--instance-types", str(types), "-f", str(written("a.json", pool(), asked))]
    page = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "no otherwise suitable type has example.com/family In [z], which the pod requires" in page
    assert "(there are c, d, e and 2 more)" in page
