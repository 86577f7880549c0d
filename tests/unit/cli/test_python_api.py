"""The Python interface gives what the commands give, as data, and raises where they end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from typer.testing import CliRunner

import karpenter
from karpenter import python_api
from karpenter.cli.main import app
from support.manifest_builders import listed, node, pod

ROOT = Path(__file__).resolve().parents[3]
SHOP = ROOT / "examples" / "shop.yaml"
POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
"""


@pytest.fixture(scope="module")
def shop() -> karpenter.LoadedObjects:
    return karpenter.load(SHOP, region="us-east-1")


def command_document(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*arguments, "-f", str(SHOP), "--region", "us-east-1", "-o", "json"])
    document = json.loads(result.stdout)
    document.pop("timings", None)
    return document


def test_a_plan_is_the_document_that_the_command_prints(shop: karpenter.LoadedObjects) -> None:
    document = json.loads(karpenter.plan(shop).to_json())
    assert document.pop("timings").keys() == {"decisionSeconds", "catalogueSeconds", "wallSeconds"}
    assert document == command_document("plan")


@pytest.mark.parametrize("name", ["search", "monolith"])
def test_an_explanation_is_the_document_that_the_command_prints(shop: karpenter.LoadedObjects, name: str) -> None:
    explanation = karpenter.explain(shop, f"pod/{name}", namespace="shop")
    assert explanation.to_dict() == command_document("explain", f"pod/{name}", "-n", "shop")
    assert explanation.headline in explanation.text


def test_the_fields_of_a_plan_are_those_of_its_document(shop: karpenter.LoadedObjects) -> None:
    result = karpenter.plan(shop)
    claims: list[dict[str, Any]] = result.to_dict()["nodeClaims"]
    assert [(node.name, list(node.pods)) for node in result.nodes] == [
        (claim["name"], claim["pods"]) for claim in claims
    ]
    assert result.price_per_hour == pytest.approx(sum(node.price_per_hour for node in result.nodes))
    assert {pod.pod for pod in result.unschedulable} == {"shop/monolith", "shop/training"}
    assert all(pod.reasons and pod.nearest_fit for pod in result.unschedulable)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.seconds = 0.0


def test_a_plan_says_which_pods_wait_for_others_that_are_being_deleted() -> None:
    ending = {**pod("old", cpu="3", nodeName="full"), "status": {"phase": "Running"}}
    ending["metadata"]["deletionTimestamp"] = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
    objects = [node("full", "4"), node("free", "1"), ending, pod("large", "2"), pod("small", "1")]
    nodes = karpenter.plan(karpenter.load_text(json.dumps(listed(*objects)))).existing_nodes
    assert {(each.pods, each.awaits_terminating_pods) for each in nodes} == {
        (("default/large",), True),
        (("default/small",), False),
    }


def test_tables_have_a_row_for_each_node_and_for_each_pod_with_equal_columns(shop: karpenter.LoadedObjects) -> None:
    result = karpenter.plan(shop)
    nodes, pods = result.to_records(), result.pod_records()
    assert (len(nodes), len(pods)) == (len(result.nodes), shop.counts["pods"])
    assert len({tuple(row) for row in nodes}) == len({tuple(row) for row in pods}) == 1
    assert {row["node"] for row in pods if row["state"] == "new-node"} == {row["name"] for row in nodes}


def test_classic_packing_never_costs_less(shop: karpenter.LoadedObjects) -> None:
    assert karpenter.plan(shop, packing="classic").price_per_hour >= karpenter.plan(shop).price_per_hour


def test_warnings_are_collected_and_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        SHOP.read_text(encoding="utf-8") + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: key, namespace: shop}\n"
    )
    objects = karpenter.load_text(text, region="us-east-1")
    assert objects.warnings == ("ignored 1 object of kinds that planning does not use: Secret 1",)
    assert karpenter.plan(objects).warnings == objects.warnings
    assert capsys.readouterr() == ("", "")


def test_settings_count_as_those_of_the_command() -> None:
    prices = [
        sum(node.price_per_hour for node in karpenter.plan(karpenter.load(SHOP, settings={"packing": name})).nodes)
        for name in ("cheapest", "classic")
    ]
    assert prices[0] <= prices[1]
    with pytest.raises(karpenter.InputError, match="--node-fee"):
        karpenter.load(SHOP, settings={"node_fee": "much"})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: karpenter.load(), "no path is given: name a file or a directory, or use load_text or load_cluster"),
        (
            lambda: karpenter.load("missing.yaml"),
            "missing.yaml: cannot be read (No such file or directory); expected Kubernetes objects as YAML or JSON",
        ),
        (lambda: karpenter.load_text(""), "text: no objects in it; expected Kubernetes objects as YAML or JSON"),
        (lambda: karpenter.load(SHOP, regoin="x"), "no option 'regoin'; did you mean 'region'?"),  # type: ignore[call-arg]
        (lambda: karpenter.load(SHOP, settings={"nodefee": "0"}), "no setting 'nodefee'; did you mean 'node_fee'?"),
        (lambda: karpenter.explain(karpenter.load(SHOP), "pod/x"), "no pod default/x in the input"),
        (
            lambda: karpenter.explain(karpenter.load(SHOP), "search"),
            "'search' names nothing: write pod NAME or pod/NAME",
        ),
        (
            lambda: karpenter.plan(karpenter.load(SHOP), "best"),
            "no packing 'best'; expected one of cheapest, classic, fewest-pods",
        ),
    ],
)
def test_wrong_input_raises_one_line_that_says_what_to_mend(call: Callable[[], object], message: str) -> None:
    with pytest.raises(karpenter.InputError) as raised:
        call()
    assert str(raised.value) == message


def test_an_invalid_object_raises_or_is_left_out_as_asked() -> None:
    pod = POOL + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{nam: web}]}\n"
    with pytest.raises(karpenter.InputError, match=r"text: document 2 \(Pod default/web\): spec.containers\[0\]"):
        karpenter.load_text(pod)
    left = karpenter.load_text(pod, skip_invalid=True)
    assert (left.counts["pods"], left.counts["nodePools"]) == (0, 1)
    assert any("Pod default/web" in line for line in left.warnings)


def test_a_cluster_without_an_answer_raises() -> None:
    with pytest.raises(karpenter.ClusterError, match="cannot read kubeconfig /nowhere"):
        karpenter.load_cluster(kubeconfig="/nowhere")


async def test_a_cluster_is_read_inside_a_running_event_loop() -> None:
    """A notebook has one: the error is that of the kubeconfig, not that of a second loop."""
    with pytest.raises(karpenter.ClusterError, match="cannot read kubeconfig /nowhere"):
        karpenter.load_cluster(kubeconfig="/nowhere")


def test_the_package_has_the_names_of_the_interface_and_imports_them_on_first_use() -> None:
    assert set(karpenter.__all__) == set(python_api.__all__)
    assert all(getattr(karpenter, name) is getattr(python_api, name) for name in karpenter.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        karpenter.plans  # noqa: B018
    script = "import sys, karpenter; print(*(name for name in sys.modules if name.startswith('karpenter')))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert sorted(loaded) == ["karpenter", "karpenter.version"]


def test_every_public_name_is_documented() -> None:
    for name in python_api.__all__:
        assert getattr(python_api, name).__doc__, name


@pytest.mark.parametrize(
    "file", sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")), ids=lambda file: str(file.name)
)
def test_an_example_notebook_runs_from_top_to_bottom(file: Path, tmp_path: Path) -> None:
    """As Jupyter runs it, in its own folder. It is kept without outputs, which would age."""
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": file.parent}})
    executed = client.execute(env={**os.environ, "IPYTHONDIR": str(tmp_path)})
    rows = executed.cells[-2].outputs[0]["data"]["text/plain"]
    assert rows.count("price_per_hour") == 4


def test_the_code_on_the_page_of_the_interface_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(compile(code, "python-api.md", "exec"), names)
    assert isinstance(names["result"], karpenter.Plan)
    assert len(names["rows"]) == 2
