"""The provider of the tutorial conforms to the contract, is selected by its name, and is short."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from karpenter import manager_cloud
from karpenter.api.karpenter import (
    NodeClassReference,
)
from karpenter.api.kinds import KINDS
from karpenter.api.meta import ObjectMeta
from karpenter.cli.main import app
from karpenter.model import labels
from karpenter.providers import conformance
from karpenter.providers.contract import CloudProvider, ProviderContext
from karpenter.settings import resolve_settings
from karpenter.simulation import virtual_time
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import LoopClock
from support.simulated_provider_cluster import BROKEN, START
from support.stored_claims import StoredClaims

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "provider"
NAME = "rack_provider:RackProvider"
CLASS = NodeClassReference(group="rack.example.com", kind="RackNodeClass", name="default")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module of the tutorial, with its own rack directory."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("RACK", str(tmp_path))
    monkeypatch.delitem(sys.modules, "rack_provider", raising=False)
    return import_module("rack_provider")


@dataclass
class RackEnvironment(StoredClaims):
    """The conformance environment of the example: an API server with its class, and the rack's directory."""

    node_class = CLASS
    pool_name = "rack"
    example: ModuleType
    rack: Path
    clock: LoopClock
    kube: MemoryKube
    started: list[CloudProvider]

    async def provider(self) -> CloudProvider:
        self.started.append(self.example.RackProvider(ProviderContext(self.kube, self.clock)))
        return self.started[-1]

    async def exhaust_capacity(self, requirements: Mapping[str, tuple[str, ...]]) -> None:
        types = json.loads((FOLDER / "server-types.json").read_text(encoding="utf-8"))
        capacity_types = requirements.get(labels.CAPACITY_TYPE, (labels.SPOT, labels.ON_DEMAND))
        keys = product((entry["name"] for entry in types), ("hall-1", "hall-2"), capacity_types)
        (self.rack / "sold-out").write_text("\n".join("/".join(key) for key in keys), encoding="utf-8")

    async def collect_garbage(self) -> None:
        await asyncio.sleep(60)
        for provider in self.started:
            await provider.collect_garbage()  # type: ignore[attr-defined]

    async def make_class_not_ready(self) -> None:
        unready = {"status": {"conditions": [BROKEN]}}
        await self.kube.patch(self.example.RACK_NODE_CLASS, CLASS.name, unready, subresource="status")

    async def delete_class(self) -> None:
        await self.kube.delete(self.example.RACK_NODE_CLASS, CLASS.name)

    async def finish_pending_work(self) -> None:
        await asyncio.sleep(60)


def run_in_environment(example: ModuleType, rack: Path, scenario: Callable[[RackEnvironment], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        kube = MemoryKube(MemoryServer(clock, kinds=(*KINDS.values(), example.RACK_NODE_CLASS)))
        await kube.create(example.RACK_NODE_CLASS, example.RackNodeClass(metadata=ObjectMeta(name=CLASS.name)))
        await scenario(RackEnvironment(example, rack, clock, kube, []))

    virtual_time.run_virtual(main, START)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_the_provider_of_the_tutorial_conforms(
    example: ModuleType, tmp_path: Path, check: conformance.ConformanceCheck
) -> None:
    """OPS-210 ff.; each check names its own rules."""
    run_in_environment(example, tmp_path, check)


def test_the_setting_creates_the_provider_with_its_class_and_garbage_collection(
    example: ModuleType, tmp_path: Path
) -> None:
    async def scenario(environment: RackEnvironment) -> None:
        setup = manager_cloud.external_setup(
            resolve_settings({"provider": NAME}, {}), environment.kube, environment.clock
        )
        assert (setup.provider.name, list(setup.garbage_collectors)) == ("rack", ["instances"])

    run_in_environment(example, tmp_path, scenario)


def test_run_accepts_the_name_of_a_provider_that_can_be_imported(example: ModuleType) -> None:
    result = CliRunner().invoke(app, ["run", "--check", "--provider", NAME])
    assert (result.exit_code, NAME in result.stdout) == (0, True)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "no_such_module:Provider",
            "karpenter run: provider no_such_module:Provider: No module named 'no_such_module'; "
            "install its package, or add its folder to PYTHONPATH",
        ),
        (
            "rack_provider:Racks",
            "karpenter run: provider rack_provider:Racks: module rack_provider has no Racks",
        ),
    ],
)
def test_run_reports_a_provider_that_cannot_be_imported_in_one_line(example: ModuleType, name: str, line: str) -> None:
    result = CliRunner().invoke(app, ["run", "--check", "--provider", name])
    assert (result.exit_code, result.stderr) == (2, line + "\n")


def test_a_plan_accepts_pools_with_a_class_of_another_provider() -> None:
    """OPS-268: the example file of instance types is in the current format."""
    arguments = ["-f", str(FOLDER / "racknodeclass.yaml"), "--instance-types", str(FOLDER / "server-types.json")]
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 0
    assert "node class" not in result.stderr


def test_the_tutorial_shows_the_code_of_the_example_in_at_most_200_lines() -> None:
    """Without blank lines, comments and docstrings; the page includes the file, so that there is one source."""
    page = (ROOT / "docs" / "how-to" / "own-provider.md").read_text(encoding="utf-8")
    assert "../../examples/provider/rack_provider.py" in page
    code = (FOLDER / "rack_provider.py").read_text(encoding="utf-8")
    lines = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith(("#", '"""'))]
    assert len(lines) <= 200
