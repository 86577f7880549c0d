"""The first hour of somebody who has a Deployment and a NodePool: the commands of the README, with their files."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app

README = Path(__file__).parents[3] / "README.md"
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: own, namespace: mine}
spec:
  replicas: 3
  selector: {matchLabels: {app: own}}
  template:
    metadata: {labels: {app: own}}
    spec:
      containers:
      - name: app
        image: own/app:1
        resources: {requests: {cpu: "2", memory: 3Gi}}
"""
NODE_POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: own}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: own}
      requirements:
      - {key: karpenter.k8s.aws/instance-category, operator: In, values: [m]}
"""


def test_two_commands_of_the_readme_lead_to_a_plan_of_ones_own_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command installs; the second plans. Nothing but the names of the files is changed."""
    commands = [line.split("#")[0].strip() for line in README.read_text().splitlines()]
    assert any(line.startswith("make demo") for line in commands)
    (own,) = (line for line in commands if "YOUR-DEPLOYMENT.yaml" in line)
    monkeypatch.chdir(tmp_path)
    Path("YOUR-DEPLOYMENT.yaml").write_text(DEPLOYMENT)
    Path("YOUR-NODEPOOL.yaml").write_text(NODE_POOL)
    result = CliRunner().invoke(app, shlex.split(own)[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "NodePool own:" in result.stdout
    assert "with 3 pods" in result.stdout
