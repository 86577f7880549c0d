"""The comparison of two releases: what it sees of a module, and what it holds against the specification."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_releases", ROOT / "tools/compare_releases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def release(folder: Path, budget_reasons: str, more_settings: str = "", verbs: str = '["get"]') -> Path:
    """A module as far as the comparison reads it."""
    reasons = {"type": "array", "items": {"type": "string", "enum": budget_reasons.strip("[]").split(", ")}}
    schema = {"openAPIV3Schema": {"properties": {"reasons": reasons}}}
    crd = {"spec": {"names": {"kind": "NodePool"}, "versions": [{"name": "v1", "schema": schema}]}}
    level = 'fs.StringVar(&o.A, "log-level", env.WithDefaultString("LOG_LEVEL", "info"), "Level")'
    files = {
        "pkg/apis/crds/pools.yaml": yaml.safe_dump(crd),
        "pkg/operator/options/options.go": f"{level}\n{more_settings}",
        "pkg/metrics/metrics.go": 'prometheus.CounterOpts{Namespace: N, Subsystem: Pods, Name: "lost_total"}',
        "pkg/metrics/metrics_test.go": 'prometheus.CounterOpts{Subsystem: Pods, Name: "of_a_test"}',
        "charts/karpenter/values.yaml": "settings: {a: 1}",
        "charts/karpenter/templates/role.yaml": f'rules:\n  - apiGroups: [""]\n    resources: ["pods"]\n    verbs: {verbs}\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_what_changed_is_named_with_what_the_specification_lacks(tool: ModuleType, tmp_path: Path) -> None:
    old = release(tmp_path / "old", "[Empty]")
    new = release(
        tmp_path / "new",
        "[Empty, Unhealthy]",
        'fs.BoolVarWithEnv(&o.B, "brand-new", "BRAND_NEW", false, "Help")',
        '["list"]',
    )
    lines = [line for line in tool.report(old, new, "reasons pods log-level") if line.startswith("- ")]
    assert sorted(lines) == [
        '- added `- apiGroups: [""] resources: ["pods"] verbs: ["list"]`',
        '- added `brand-new`: , false, "Help") **not in docs/spec**',
        "- changed `NodePool.v1.reasons[]`: type=string enum=['Empty'] → type=string enum=['Empty', 'Unhealthy']",
        '- removed `- apiGroups: [""] resources: ["pods"] verbs: ["get"]`',
    ]


def test_equal_releases_have_no_changes(tool: ModuleType, tmp_path: Path) -> None:
    folder = release(tmp_path, "[Empty]")
    assert list(tool.report(folder, folder, "")) == []


def test_metrics_of_tests_are_none(tool: ModuleType, tmp_path: Path) -> None:
    assert list(tool.metrics(release(tmp_path, "[]"))) == ["Pods lost_total"]


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("NodePool.v1.spec.disruption.budgets[].reasons[]", True),
        ("Pods lost_total", True),
        ("NodePool.v1.spec.brandNew", False),
        ('- apiGroups: [""] resources: ["pods", "secrets"] verbs: ["get"]', False),
    ],
)
def test_a_fact_is_covered_where_the_specification_has_its_last_word(
    tool: ModuleType, name: str, covered: bool
) -> None:
    assert tool.is_covered(name, "budgets have reasons; `karpenter_pods_lost_total` counts pods") is covered


def test_the_specification_has_what_the_newest_release_brought(tool: ModuleType) -> None:
    """K15-002, K15-008, K15-045: what release 1.15 added can be found in docs/spec."""
    text = tool.specification_text()
    assert all(tool.is_covered(name, text) for name in ("legacy-node-repair", "do-not-repair", "RebootObserved"))
