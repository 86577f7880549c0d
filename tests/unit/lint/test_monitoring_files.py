"""Dashboards and rules are found wherever they are kept, with the lines of their expressions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Findings = Callable[..., list[dict[str, Any]]]
BOARD = {"title": "Nodes", "panels": [{"targets": [{"expr": "sum (karpenter_nodes_made_total)"}]}]}
RULES = """groups:
- name: nodes
  rules:
  - record: karpenter_share
    expr: karpenter_nodes_made_total / 2
  - alert: Share
    expr: |
      karpenter_share > 0.9
"""


def _places(findings: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["rule"], each["line"]) for each in findings]


def test_a_dashboard_of_grafana_is_a_json_file(findings: Findings) -> None:
    text = json.dumps(BOARD, indent=2)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "expr" in each)
    assert _places(findings(board__json=text)) == [("KL501", line)]


def test_variables_of_a_dashboard_are_looked_at(findings: Findings) -> None:
    variable = {"name": "pool", "query": {"query": "label_values(karpenter_nodes_created, nodepool)"}}
    text = json.dumps({"panels": [], "templating": {"list": [variable]}})
    assert _places(findings(board__json=text)) == [("KL502", 1)]


@pytest.mark.parametrize(
    "head",
    [
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: board}\ndata:\n  board.json: |\n",
        "apiVersion: grafana.integreatly.org/v1beta1\nkind: GrafanaDashboard\nmetadata: {name: board}\nspec:\n  json: >\n",
    ],
    ids=["a ConfigMap", "a GrafanaDashboard"],
)
def test_a_dashboard_may_be_a_text_in_an_object(findings: Findings, head: str) -> None:
    lines = json.dumps(BOARD, indent=2).splitlines()
    text = head + "".join(f"    {line}\n" for line in lines)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "expr" in each)
    assert _places(findings(text)) == [("KL501", line)]


def test_other_texts_in_a_config_map_are_left_alone(findings: Findings) -> None:
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata:\n"
    assert findings(f'{head}  a: "{{ not json"\n  b: \'{{"expr": "karpenter_none"}}\'\n  c: karpenter_none\n') == []


@pytest.mark.parametrize("is_object", [False, True], ids=["a file of Prometheus", "a PrometheusRule"])
def test_rules_are_looked_at_and_series_that_they_record_are_known(findings: Findings, is_object: bool) -> None:
    text = RULES
    if is_object:
        head = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: nodes}\nspec:\n"
        text = head + "".join(f"  {line}\n" for line in RULES.splitlines())
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "made_total" in each)
    assert _places(findings(text)) == [("KL501", line)]
