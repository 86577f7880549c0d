"""What `karpenter explain` may be asked about, and shell completion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.api.core import Pod
from karpenter.cli import main
from karpenter.cli.explain_subjects import Subject, parse_subject, pods_of_workload
from karpenter.cli.terminal import WrongInput
from support.builders import owner, pod, replaced
from support.manifest_builders import pool

WORKLOADS = {
    "deployment": ("apps/v1", "Deployment"),
    "statefulset": ("apps/v1", "StatefulSet"),
    "replicaset": ("apps/v1", "ReplicaSet"),
    "job": ("batch/v1", "Job"),
}


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (["pod", "a"], Subject("Pod", "a")),
        (["pod/a"], Subject("Pod", "a")),
        (["po/a"], Subject("Pod", "a")),
        (["node/ip-1"], Subject("Node", "ip-1")),
        (["nodeclaim/c"], Subject("Node", "c")),
        (["deploy", "web"], Subject("Deployment", "web")),
        (["Deployment/web"], Subject("Deployment", "web")),
        (["sts/db"], Subject("StatefulSet", "db")),
    ],
)
def test_kinds_are_written_as_for_kubectl(words: list[str], subject: Subject) -> None:
    assert parse_subject(words) == subject


@pytest.mark.parametrize("words", [["pod"], ["pod/"], ["pod", "a", "b"], ["service/a"]])
def test_anything_else_is_refused_in_one_line(words: list[str]) -> None:
    with pytest.raises(WrongInput):
        parse_subject(words)


@pytest.mark.parametrize("kind", list(WORKLOADS))
def test_a_workload_stands_for_its_first_pod_without_a_node(
    kind: str, types: Path, written: Callable[..., Path]
) -> None:
    api_version, name = WORKLOADS[kind]
    container = {"name": "a", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"restartPolicy": "Always", "containers": [container]}}
    spec: dict[str, object] = {"selector": {"matchLabels": {"app": "w"}}, "replicas": 3, "template": template}
    if kind == "job":
        template["spec"] = {"restartPolicy": "Never", "containers": [container]}
        spec = {"parallelism": 3, "completions": 3, "template": template}
    if kind == "statefulset":
        spec["serviceName"] = "w"
    workload = {
        "apiVersion": api_version,
        "kind": name,
        "metadata": {"name": "w", "namespace": "default"},
        "spec": spec,
    }
    file = written("a.json", pool(), workload)
    outcome = CliRunner().invoke(main.app, ["explain", f"{kind}/w", "-f", str(file), "--instance-types", str(types)])
    assert outcome.exit_code == 0, outcome.output
    assert f"{name} w has 3 pods; this is w-" in outcome.stderr
    assert outcome.stdout.startswith("Pod default/w-")
    absent = CliRunner().invoke(main.app, ["explain", f"{kind}/v", "-f", str(file), "--instance-types", str(types)])
    assert (absent.exit_code, absent.stderr.splitlines()[-1]) == (2, f"no pod of {name} default/v in the input")


def of_job(name: str, phase: str, **spec: object) -> Pod:
    """A pod of Job ``nightly-1``."""
    made = pod(name, {"cpu": "1"}, meta={"namespace": "shop", "owner_references": (owner("Job", "nightly-1"),)}, **spec)
    return replaced(made, status=replaced(made.status, phase=phase))


def test_a_workload_stands_for_a_finished_pod_only_where_all_have_finished() -> None:
    over, runs = of_job("a", "Succeeded", node_name="n"), of_job("b", "Running", node_name="n")
    waits = of_job("c", "Pending")
    found = pods_of_workload([over, runs, waits], "shop", Subject("CronJob", "nightly"))
    assert [each.metadata.name for each in found] == ["c", "b", "a"]


def test_a_workload_of_another_namespace_is_named_with_it(written: Callable[..., Path]) -> None:
    metadata = {"name": "w", "namespace": "shop"}
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "a", "image": "pause"}]}}
    spec = {"selector": {"matchLabels": {"app": "w"}}, "replicas": 1, "template": template}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    outcome = CliRunner().invoke(main.app, ["explain", "deployment/w", "-f", str(written("a.json", pool(), workload))])
    line = "no pod of Deployment default/w in the input; there is one of that name with -n shop"
    assert (outcome.exit_code, outcome.stderr.splitlines()[-1]) == (2, line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_the_program_itself(shell: str) -> None:
    outcome = CliRunner().invoke(main.app, ["completion", shell])
    assert outcome.exit_code == 0
    assert f"_KARPENTER_COMPLETE=complete_{shell}" in outcome.stdout


@pytest.mark.parametrize(
    ("line", "number", "completed"),
    [("karpenter pl", 1, ["plan"]), ("karpenter plan --det", 2, ["--detailed-exitcode"])],
)
def test_commands_and_options_are_completed(
    line: str, number: int, completed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_KARPENTER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(number))
    with pytest.raises(SystemExit):
        main.main()
    assert capsys.readouterr().out.split() == completed
