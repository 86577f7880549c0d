"""Exposure and the cost of interruptions on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from support.manifest_builders import Json, Plan, listed, pod, pool, type_of

Written = Callable[..., Path]


def replicas(count: int, **annotations: str) -> list[Json]:
    """Pods of one ReplicaSet, small enough for one node."""
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7f", "uid": "u1", "controller": True}
    own = {"ownerReferences": [reference], "annotations": annotations}
    return [{**pod("web", "100m"), "metadata": {"name": f"web-{number}", **own}} for number in range(count)]


def pods_per_node(plan: Plan, *arguments: str | Path) -> list[int]:
    loads = json.loads(plan(*arguments, "-o", "json").stdout)
    return sorted(len(nodeclaim["pods"]) for nodeclaim in loads["nodeClaims"])


def test_a_workload_is_on_two_nodes_unless_that_is_off(plan: Plan, written: Written) -> None:
    waiting = written("web.json", pool(), *replicas(8))
    assert pods_per_node(plan, "-f", waiting) == [4, 4]
    assert pods_per_node(plan, "-f", waiting, "--exposure", "off") == [8]
    assert pods_per_node(plan, "-f", waiting, "--exposure", "0.25") == [2, 2, 2, 2]


def test_the_environment_says_it_too(plan: Plan, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPOSURE", "off")
    assert pods_per_node(plan, "-f", written("web.json", pool(), *replicas(8))) == [8]


@pytest.mark.parametrize("share", ["half", "0", "2", "50%"])
@pytest.mark.parametrize("command", [["plan"], ["explain", "pod", "web-0"]])
def test_a_share_that_is_none_ends_the_command(command: list[str], share: str, written: Written) -> None:
    file = written("web.json", pool(), *replicas(1))
    invoke = CliRunner().invoke(app, [*command, "-f", str(file), "--exposure", share])
    assert invoke.exit_code == 2
    assert invoke.stderr.splitlines() == [
        f"karpenter {command[0]}: --exposure={share!r} is not off or a number above 0 and up to 1, such as 0.5"
    ]


def test_a_relaxed_preference_is_reported_in_one_line_and_as_data(plan: Plan, written: Written) -> None:
    limited = written("web.json", pool(limits={"nodes": "1"}), *replicas(8))
    loads = json.loads(plan("-f", limited, "-o", "json").stdout)
    (claim,) = loads["nodeClaims"]
    assert loads["exposure"] == {
        "relaxed": [
            {
                "subject": "ReplicaSet default/web-7f",
                "place": f"NodeClaim {claim['name']}",
                "number": 8,
                "most": 4,
                "reason": "Limits",
            }
        ],
        "unreadable": [],
    }
    lines = [line for line in plan("-f", limited).stdout.splitlines() if "exposure" in line]
    assert lines == [
        f"exposure limit not kept: 8 pods of ReplicaSet default/web-7f in NodeClaim {claim['name']}, preferred at most 4: "
        "limits of NodePools allow no other nodes"
    ]


def test_an_annotation_that_cannot_be_parsed_is_reported(plan: Plan, written: Written) -> None:
    odd = written("web.json", pool(), *replicas(8, **{"karpenter.sh/exposure": "some"}))
    assert pods_per_node(plan, "-f", odd) == [4, 4]
    (line,) = (line for line in plan("-f", odd).stdout.splitlines() if "exposure" in line)
    assert line.startswith("annotation karpenter.sh/exposure of ReplicaSet default/web-7f: 'some' is neither")


def test_what_an_interruption_costs_decides_between_nodes(tmp_path: Path, written: Written) -> None:
    """The offering says how often; the price shown is what is paid."""
    types = tmp_path / "spot.json"
    risky, calm = type_of("risky", 8, 16, 0.35), type_of("calm", 4, 8, 0.18)
    risky["offerings"][0]["interruptionsPerHour"] = 0.05
    types.write_text(json.dumps([risky, calm]))
    waiting = tmp_path / "pods.json"
    waiting.write_text(json.dumps(listed(pool(), *(pod(f"p{number}", "1") for number in range(8)))))
    launched = {}
    for cost in ("0", "1"):
        arguments = [
            "plan",
            "-f",
            str(waiting),
            "--instance-types",
            str(types),
            "--interruption-cost",
            cost,
            "-o",
            "json",
        ]
        loads = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
        launched[cost] = (
            sorted(nodeclaim["instanceTypes"][0] for nodeclaim in loads["nodeClaims"]),
            loads["cost"]["perHour"],
        )
    assert launched == {"0": (["risky"], 0.35), "1": (["calm", "calm"], 0.36)}
