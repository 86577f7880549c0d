"""Where rules keep quiet: patterns that look like mistakes and are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from karpenter.lint.rule_page import read_example
from karpenter.lint.rules import RULES

Findings = Callable[..., list[dict[str, Any]]]
BAD = {rule.id: read_example(rule).bad for rule in RULES}
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: metal-1}\n"
LIMITS = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: defaults}\nspec: {limits: []}\n"
SCALER = """apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {scaleTargetRef: {kind: Deployment, name: web}, minReplicas: 1, maxReplicas: 3}
"""


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("KL202", BAD["KL202"].replace('{cpu: "4"}', '{cpu: "0"}')),
        ("KL209", BAD["KL209"].replace("[spot]", "[spot, on-demand]")),
        ("KL212", BAD["KL212"].partition("---")[0]),
        ("KL213", BAD["KL213"].partition("---")[0]),
        ("KL220", BAD["KL220"].replace("  weight: 50\n", "")),
        ("KL221", BAD["KL221"].replace("values: [amd64]", "values: [arm64]", 1)),
        ("KL313", BAD["KL313"].partition("---")[2].partition("---")[2]),
        ("KL401", f"{BAD['KL401']}---\n{LIMITS}"),
        ("KL402", f"{BAD['KL402']}---\n{NODE}"),
        ("KL402", BAD["KL402"].partition("---")[2]),
        ("KL410", f"{BAD['KL410']}---\n{SCALER}"),
        (
            "KL410",
            BAD["KL410"].replace("labelSelector: {matchLabels: {app: web}}", "labelSelector: {matchLabels: {app: db}}"),
        ),
        ("KL411", BAD["KL411"].partition("---")[2]),
        ("KL420", BAD["KL420"].replace("kind: Deployment", "kind: CronTab")),
        ("KL422", BAD["KL422"].partition("---")[2]),
        ("KL421", BAD["KL421"].partition("---")[2]),
    ],
    ids=[
        "a limit of 0 is a switch",
        "spot with on-demand has its fallback",
        "without pods no taint is without toleration",
        "without DaemonSets nodes are empty",
        "pools of one weight do not shadow each other",
        "pools of other architectures do not tie",
        "a class in a file of its own may be used elsewhere",
        "a LimitRange gives requests",
        "with nodes at hand a pod may run there",
        "without NodePools nothing is known",
        "an autoscaler keeps replicas few",
        "an anti-affinity against others is no fleet of nodes",
        "without NodePools zones are not known",
        "a kind of others is not looked at",
        "without workloads a budget may protect others",
        "without workloads minAvailable may leave some",
    ],
)
def test_a_rule_keeps_quiet(findings: Findings, rule: str, text: str) -> None:
    assert [each for each in findings(text) if each["rule"] == rule] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("maxUnavailable: 0", True),
        ('maxUnavailable: "0%"', True),
        ("maxUnavailable: 1", False),
        ('maxUnavailable: "1%"', False),
        ('minAvailable: "100%"', True),
        ('minAvailable: "51%"', True),
        ('minAvailable: "50%"', False),
        ("minAvailable: 2", True),
        ("minAvailable: 1", False),
    ],
)
def test_a_pdb_over_two_replicas_allows_an_eviction_or_none(findings: Findings, line: str, expected: bool) -> None:
    """Percentages are rounded up, as ``model.pdb_counts`` says."""
    text = BAD["KL421"].replace("replicas: 1", "replicas: 2").replace("minAvailable: 1", line)
    assert any(each["rule"] == "KL421" for each in findings(text)) is expected


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        ('- {nodes: "0"}', True),
        ('- {nodes: "0%", schedule: "@daily", duration: 24h}', True),
        ('- {nodes: "0", schedule: "0 0 * * mon-fri", duration: 24h}', False),
        (
            '- {nodes: "0", schedule: "0 0 * * mon-fri", duration: 24h}\n'
            '    - {nodes: "0", schedule: "0 0 * * sat", duration: 48h}',
            True,
        ),
        ('- {nodes: "0", reasons: [Empty]}', True),
        ('- {nodes: "1"}', False),
    ],
)
def test_budgets_relax_at_some_time_or_never(findings: Findings, budgets: str, expected: bool) -> None:
    """DIS-141: windows that touch leave no moment between them."""
    head, _, _ = BAD["KL103"].partition("    - {nodes")
    assert any(each["rule"] == "KL103" for each in findings(f"{head}    {budgets}\n")) is expected
