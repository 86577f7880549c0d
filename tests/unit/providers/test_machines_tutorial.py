"""The tutorial of provider ``machines``: its commands, its class and its drivers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import yaml

from karpenter.api.kinds import MACHINE_NODE_CLASS
from karpenter.providers.machines.machine_hosts import instance_types

_ROOT = Path(__file__).resolve().parents[3]
_EXAMPLES = _ROOT / "examples" / "machines"


def test_the_commands_of_the_tutorial_power_a_host() -> None:
    """The commands of the page are run unchanged from the root of the repository."""
    page = (_ROOT / "docs" / "getting-started" / "machines.md").read_text(encoding="utf-8")
    block = next(block for block in page.split("```sh\n")[1:] if block.startswith("export PATH")).split("```")[0]
    result = subprocess.run(["sh", "-euc", block], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["off", "on"]


def test_the_hosts_of_the_tutorial_can_be_used_in_a_plan() -> None:
    """Every driver of the examples is a program, and the class names one of them."""
    documents = [document for document in yaml.safe_load_all((_EXAMPLES / "lab.yaml").read_text()) if document]
    node_class = MACHINE_NODE_CLASS.decode(msgspec.json.encode(documents[0]))
    types = instance_types("lab", node_class.spec.hosts, ())
    assert sorted(kind.allocatable["cpu"] for kind in types) == [15_800, 31_800]
    drivers = {file.name: os.access(file, os.X_OK) for file in (_EXAMPLES / "drivers").iterdir()}
    assert node_class.spec.power in drivers
    assert all(drivers.values())
    for name in drivers:
        assert subprocess.run(["sh", "-n", str(_EXAMPLES / "drivers" / name)], check=False).returncode == 0
