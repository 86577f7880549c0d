"""The charts repeat what the code declares, and offer a value for everything that can be set."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from karpenter.runtime.intervals import INTERVALS
from karpenter.settings import SETTINGS
from support import yaml_text

ROOT = Path(__file__).parents[3]
CHARTS = ROOT / "charts"
TOOL = runpy.run_path(str(ROOT / "tools" / "chart_files.py"))
WRITTEN: dict[Path, str] = TOOL["files"]()
VALUES = yaml_text.document((CHARTS / "karpenter" / "values.yaml").read_text(encoding="utf-8"))
#: Values of Karpenter's chart (OPS-610 to OPS-646).
KARPENTERS_VALUES = tuple(
    re.findall(
        r"\S+",
        """
nameOverride fullnameOverride additionalLabels additionalAnnotations imagePullPolicy imagePullSecrets service.annotations
serviceAccount.create serviceAccount.name serviceAccount.annotations additionalClusterRoleRules serviceMonitor.enabled
serviceMonitor.additionalLabels serviceMonitor.relabelings serviceMonitor.metricRelabelings serviceMonitor.endpointConfig
serviceMonitor.sampleLimit replicas revisionHistoryLimit strategy podLabels podAnnotations podDisruptionBudget.name
podDisruptionBudget.maxUnavailable podSecurityContext priorityClassName terminationGracePeriodSeconds hostNetwork schedulerName
dnsPolicy dnsConfig initContainers nodeSelector affinity topologySpreadConstraints tolerations extraVolumes
controller.containerName controller.image.repository controller.image.tag controller.image.digest controller.env
controller.envFrom controller.securityContext.appArmorProfile controller.securityContext.seLinuxOptions
controller.securityContext.seccompProfile controller.resources controller.extraVolumeMounts controller.sidecarContainer
controller.sidecarVolumeMounts controller.metrics.port controller.healthProbe.port logLevel logOutputPaths logErrorOutputPaths
settings.batchMaxDuration settings.batchIdleDuration settings.preferencePolicy settings.minValuesPolicy settings.clusterName
settings.clusterEndpoint settings.clusterCABundle settings.interruptionQueue settings.isolatedVPC settings.eksControlPlane
settings.enableZonalShift settings.disableDryRun settings.disableClusterStateObservability settings.vmMemoryOverheadPercent
settings.reservedENIs settings.ignoreDRARequests settings.amiRefreshInterval settings.subnetRefreshInterval
settings.featureGates.nodeRepair settings.featureGates.nodeOverlay settings.featureGates.reservedCapacity
settings.featureGates.spotToSpotConsolidation settings.featureGates.staticCapacity settings.featureGates.capacityBuffer
settings.featureGates.capacitySchedule
settings.awsFeatureGates.nodeClassCEL
""",
    )
)


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_a_file_of_the_charts_is_what_the_code_says(file: Path) -> None:
    """OPS-648, API-870"""
    assert file.read_text(encoding="utf-8") == WRITTEN[file], "run: make charts"


def test_no_definition_of_a_kind_that_is_gone_is_left() -> None:
    assert TOOL["unwanted_files"]() == []


def has(path: str) -> bool:
    node = VALUES
    for name in path.split("."):
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


@pytest.mark.parametrize("path", KARPENTERS_VALUES)
def test_a_value_of_karpenters_chart_exists_here(path: str) -> None:
    """OPS-610 to OPS-646"""
    assert has(path)


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - TOOL["WITHOUT_VALUE"]))
def test_every_setting_has_a_value(name: str) -> None:
    """OPS-648"""
    path = TOOL["ELSEWHERE"].get(name) or f"settings.{TOOL['value_name'](SETTINGS[name].spelling.variable)}"
    assert has(path)


def test_every_interval_has_a_value() -> None:
    assert all(has(f"settings.intervals.{name}") for name in TOOL["interval_values"]())
    assert len(TOOL["interval_values"]()) == len(INTERVALS)


@pytest.mark.parametrize("chart", ["karpenter", "karpenter-crd"])
def test_a_chart_is_of_this_release(chart: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = yaml_text.document((CHARTS / chart / "Chart.yaml").read_text(encoding="utf-8"))
    assert (metadata["name"], metadata["version"], metadata["appVersion"]) == (
        chart,
        project["version"],
        project["version"],
    )


def test_every_value_has_a_comment_that_says_what_it_is_for() -> None:
    documented = {path for path, _, _ in TOOL["values_with_comments"](CHARTS / "karpenter" / "values.yaml")}
    missing = [
        path for path in leaves("", VALUES) if not any(path == one or path.startswith(one + ".") for one in documented)
    ]
    assert missing == []


def leaves(path: str, node: object) -> list[str]:
    if not isinstance(node, dict) or not node:
        return [path]
    return [leaf for name, value in node.items() for leaf in leaves(f"{path}.{name}".lstrip("."), value)]


def test_old_values_lead_to_values_that_exist() -> None:
    """OPS-673"""
    old = TOOL["old_values"]()
    assert [one["new"] for one in old if "new" in one and not has(one["new"])] == []
    assert [one["old"] for one in old if has(one["old"])] == []
    assert {one["old"] for one in old} >= {
        "settings.aws.clusterName",
        "settings.aws.defaultInstanceProfile",
        "controller.clusterName",
        "controller.clusterEndpoint",
    }


def test_the_templates_name_no_value_that_does_not_exist() -> None:
    """A misspelt value renders as nothing, without a word."""
    names = set()
    for template in sorted((CHARTS / "karpenter" / "templates").iterdir()):
        names |= set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", template.read_text(encoding="utf-8")))
    assert sorted(name for name in names if not has(name)) == []
