"""The first hour of somebody with a Deployment and a NodePool: the commands of the README, with their files, in a clone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: The environment of somebody without this checkout: make finds no installation but its own.
STRANGER = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")}
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


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `git clone` gives a stranger, with their two files in it."""
    folder = tmp_path_factory.mktemp("first-hour") / "karpenter"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(folder)], check=True)
    (folder / "YOUR-DEPLOYMENT.yaml").write_text(DEPLOYMENT)
    (folder / "YOUR-NODEPOOL.yaml").write_text(NODE_POOL)
    return folder


def test_the_first_two_commands_of_the_readme_lead_from_a_clone_to_a_plan_of_ones_own_deployment(clone: Path) -> None:
    """Issue 16: word by word as the README has them; the plan takes less than a minute after the installation."""
    install, plan, *_ = (line.split("#")[0].strip() for line in _first_commands(clone))
    assert plan.split()[:2] == [".venv/bin/karpenter", "plan"]
    subprocess.run(install, shell=True, cwd=clone, env=STRANGER, check=True, capture_output=True)
    said = subprocess.run(
        plan, shell=True, cwd=clone, env=STRANGER, check=True, capture_output=True, text=True, timeout=60
    )
    assert "NodePool own:" in said.stdout
    assert "with 3 pods" in said.stdout


def _first_commands(clone: Path) -> list[str]:
    """The lines of the first block of commands."""
    block = (clone / "README.md").read_text().split("```sh\n")[1].split("```")[0]
    return block.strip().splitlines()


@pytest.mark.parametrize("page", ["README.md", "docs/ko/README.md"])
def test_each_translation_begins_with_the_same_two_commands(page: str) -> None:
    words = [line.split("#")[0].strip() for line in (ROOT / page).read_text().split("```sh\n")[1].splitlines()[:2]]
    assert words == ["make install", ".venv/bin/karpenter plan -f YOUR-DEPLOYMENT.yaml -f YOUR-NODEPOOL.yaml"]
