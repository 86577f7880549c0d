"""``karpenter plan --compare classic``: what packing by price saves against filling the largest nodes first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.cli.render_common import SHOWN_ENTRIES
from support.manifest_builders import Json, Plan, pod, pool, type_of

Written = Callable[..., Path]
BOTH = ("--compare", "classic", "--node-fee", "0")


@pytest.fixture
def five(written: Written) -> Path:
    """Four of these pods fill a large node, the fifth takes a small one."""
    return written("five.json", pool(), *(pod(f"web-{number}", "1900m") for number in range(5)))


def test_the_plan_stays_as_it_is_and_the_classic_one_is_a_further_member(plan: Plan, five: Path) -> None:
    alone = json.loads(plan("-f", five, "--node-fee", "0", "-o", "json").stdout)
    both = json.loads(plan("-f", five, *BOTH, "-o", "json").stdout)
    assert list(both) == [*alone, "comparison"]
    assert both["nodeClaims"] == alone["nodeClaims"]
    classic = both["comparison"]["classic"]
    assert list(classic) == ["nodeClaims", "existingNodes", "unschedulable", "exposure", "cost", "timings"]
    assert sorted(claim["cheapest"]["instanceType"] for claim in classic["nodeClaims"]) == ["a.large", "a.small"]
    saved = classic["cost"]["perHour"] - both["cost"]["perHour"]
    assert both["comparison"]["savedPerHour"] == pytest.approx(saved)
    assert saved >= 0


def test_yaml_has_it_too(plan: Plan, five: Path) -> None:
    safe_load = yaml.safe_load(plan("-f", five, *BOTH, "-o", "yaml").stdout)
    assert list(safe_load["comparison"]) == ["classic", "savedPerHour", "savedShare"]


def test_the_page_shows_both_and_what_is_saved(written: Written, tmp_path: Path) -> None:
    """A type twice as large at three times the price: the classic packing takes it all the same."""
    types = tmp_path / "odd.json"
    types.write_text(json.dumps([type_of("a.small", 2, 8, 0.1), type_of("a.large", 4, 16, 0.3)]))
    pods = [pod(f"web-{number}", "1") for number in range(4)]
    file = written("a.json", pool(), *pods)
    result = CliRunner().invoke(app, ["plan", "--instance-types", str(types), "-f", str(file), *BOTH])
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["price,", "$/h", "0.200", "0.300"] in lines
    assert ["gap", "optimal", "50.0%"] in lines
    assert ["2", "a.small", "on-demand", "0.200", "1", "a.large", "on-demand", "0.300"] in lines
    assert "The chosen plan saves $0.100 per hour (33.3%), $73 a month." in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_a_comparison_without_savings_says_so(plan: Plan, written: Written) -> None:
    page = plan("-f", written("a.json", pool(), pod()), *BOTH).stdout
    assert "Both cost the same." in page


def test_without_new_nodes_both_are_empty(plan: Plan, written: Written) -> None:
    page = plan("-f", written("a.json", pool()), *BOTH).stdout
    assert "Both cost the same." in page
    assert " launches" not in page


def test_long_plans_are_cut_on_both_sides(plan: Plan, written: Written) -> None:
    actual: list[Json] = []
    for number in range(SHOWN_ENTRIES + 2):
        actual += [pool(f"p{number}"), pod(f"w{number}", "7", nodeSelector={"karpenter.sh/nodepool": f"p{number}"})]
    page = plan("-f", written("a.json", *actual), *BOTH).stdout
    assert page.count("... and 2 more") == 2


def test_nothing_else_can_be_compared_with(plan: Plan, five: Path) -> None:
    assert plan("-f", five, "--compare", "other").exit_code == 2
