"""Dashboards, rules and the page about alerts are what the code writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from monitoring.alerts import ALERTS
from monitoring.files import DASHBOARDS, FILES
from monitoring.panels import Dashboard
from monitoring.series import UnknownSeries, series, summed

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", FILES)
def test_a_generated_file_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == FILES[name](), "run: python -m monitoring"


def test_an_expression_names_only_what_is_exported() -> None:
    with pytest.raises(UnknownSeries, match="karpenter_nodes_made_total is not exported"):
        series("karpenter_nodes_made_total")
    with pytest.raises(UnknownSeries, match="karpenter_nodes_created_total has no label colour"):
        series("karpenter_nodes_created_total", colour="red")
    with pytest.raises(UnknownSeries, match="karpenter_nodes_created_total has no label colour"):
        summed("karpenter_nodes_created_total", "nodepool, colour")


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_panels_neither_overlap_nor_leave_the_page(dashboard: Dashboard) -> None:
    places = set()
    for panel in json.loads(FILES[f"charts/karpenter/dashboards/{dashboard.name}.json"]())["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        places |= cells


def test_alerts_have_names_of_their_own_and_say_what_to_do() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    assert [alert.name for alert in ALERTS if not alert.name.startswith("Karpenter")] == []
    assert [alert.name for alert in ALERTS if len(alert.remedy) < 20] == []
