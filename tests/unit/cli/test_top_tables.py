"""The lines and tables of ``karpenter top``, without a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from karpenter.api.karpenter import Budget
from karpenter.cli.terminal import WrongInput
from karpenter.cli.top_cells import TableData, age_text, sparkline, text_cell
from karpenter.cli.top_options import ViewerOptions, ViewerStyle, viewer_options
from karpenter.cli.top_tables import (
    TABS,
    event_table,
    node_table,
    pool_table,
    spend_table,
    summary_lines,
    unpriced_text,
)
from karpenter.console.console_view import ConsoleView
from support.builders import NOW, claim, node, node_and_claim, pod, seconds, taint
from support.console_cases import event, view_of
from support.disruption_cases import pool, running

PLAIN = ViewerOptions()


def shown(table: TableData) -> list[dict[str, str]]:
    """The rows by column title."""
    return [dict(zip(table.columns, (cell.text for cell in row.cells), strict=True)) for row in table.rows]


def lines(view: ConsoleView, options: ViewerOptions = PLAIN, bound: float | None = None) -> list[str]:
    return [line.plain for line in summary_lines(view, options, bound)]


def test_the_first_line_has_nodes_requests_and_price_per_hour_and_month() -> None:
    """OPS-800, OPS-801: a month has 730 hours; finished pods do not count."""
    done = pod("done", {"cpu": "1"}, node_name="n", status={"phase": "Succeeded"})
    cpu, memory, pods_line = lines(view_of(pool(), running("n", "m", 3), pod("waits", {"cpu": "1"}), done), bound=1.6)
    assert cpu.startswith("1 node     cpu 3.0/4.0 ")
    assert cpu.endswith(" 75%  $2.000/hour | $1460/month")
    assert "memory 0.0/64.0 GiB" in memory
    assert pods_line == "2 pods (1 pending 1 running 1 bound)  1.25 x bound"


@pytest.mark.parametrize(("share", "name"), [(0.95, "good"), (0.9, "fair"), (0.61, "fair"), (0.6, "bad"), (0.0, "bad")])
def test_a_full_node_is_good(share: float, name: str) -> None:
    """OPS-800: above 90 % good, above 60 % fair, otherwise bad."""
    assert ViewerStyle("g", "f", "b").color(share) == name[0]


def test_a_row_has_what_users_of_eks_node_viewer_know_and_the_state_of_its_claim() -> None:
    """OPS-802, OPS-805."""
    (row,) = shown(node_table(view_of(pool(), running("n", "m", 1, capacity_type="spot")), PLAIN))
    assert row["node"] == "n"
    assert (row["cpu"], row["pods"], row["type"], row["$/h"]) == ("  25%", "1", "m", "$1.0000")
    assert (row["capacity"], row["state"], row["cordon"], row["ready"]) == ("Spot", "consolidatable", "-", "Ready")


def test_a_node_on_its_way_out_is_cordoned_and_deleting() -> None:
    """OPS-802: `Cordoned/Deleting`."""
    wires = node_and_claim("n", {"cpu": 4}, taints=(taint("karpenter.sh/disrupted"),), deleted=True)
    (row,) = shown(node_table(view_of(pool(), wires), PLAIN))
    assert row["cordon"] == "Cordoned/Deleting"


def test_a_claim_without_a_node_is_not_ready_for_as_long_as_it_exists() -> None:
    """OPS-V1, OPS-802: `NotReady/age`."""
    born = claim("c", {"cpu": 4}, provider_id="p://c")
    (row,) = shown(node_table(view_of(pool(), born, now=seconds(90)), PLAIN))
    assert (row["node"], row["ready"]) == ("c", "NotReady/-")


def test_a_selector_limits_nodes_and_sums() -> None:
    """OPS-804: node-selector; the summary is about the nodes shown."""
    view = view_of(pool(), running("n", "m"), node("foreign", {"cpu": 4}))
    options = ViewerOptions(node_selector="karpenter.sh/nodepool")
    assert [row["node"] for row in shown(node_table(view, options))] == ["n"]
    assert lines(view, options)[0].startswith("1 node ")


@pytest.mark.parametrize(("text", "order"), [("zone=asc", ["a", "b"]), ("zone=dsc", ["b", "a"]), ("zone", ["a", "b"])])
def test_nodes_are_sorted_by_a_label(text: str, order: list[str]) -> None:
    """OPS-804: node-sort."""
    objects = [node("b", {"cpu": 1}, labels={"zone": "z2"}), node("a", {"cpu": 1}, labels={"zone": "z1"})]
    options = viewer_options({"node-sort": text}, Path("/nowhere"))
    assert [row["node"] for row in shown(node_table(view_of(objects), options))] == order


def test_extra_labels_have_columns_and_those_of_eks_node_viewer_are_computed() -> None:
    """OPS-804: extra-labels."""
    names = ("topology.kubernetes.io/zone", "eks-node-viewer/node-cpu-usage", "eks-node-viewer/node-pods-usage", "none")
    (row,) = shown(node_table(view_of(pool(), running("n", "m", 1)), ViewerOptions(extra_labels=names)))
    assert [row[name] for name in names] == ["z1", "25%", "2%", "-"]


def test_the_lines_above_fit_on_80_columns_also_for_a_large_cluster() -> None:
    """OPS-800: from a thousand on amounts have no decimals."""
    nodes = [node(f"n{number}", {"cpu": 64, "memory": "512Gi", "pods": 250}) for number in range(50)]
    busy = running("busy", "l", 4)
    view = view_of(pool(), busy, nodes)
    cpu, memory, pods_line = lines(view, bound=2.0)
    assert cpu.startswith("51 nodes   cpu 4.0/3,208            ")
    assert "memory 0.0/25,664 GiB" in memory
    assert max(map(len, (cpu, memory, pods_line))) <= 78
    assert unpriced_text(view, PLAIN) == "50 nodes without price"
    assert unpriced_text(view_of(pool(), busy), PLAIN) == ""


def test_budgets_stand_together_where_they_are_equal() -> None:
    """OPS-805: the pool's budget, by reason where reasons differ."""
    (alike,) = shown(pool_table(view_of(pool("np", Budget(nodes="2")), running("n", "m")), PLAIN))
    assert alike["may go"] == "2 of 2"
    (unlike,) = shown(
        pool_table(view_of(pool("np", Budget(nodes="2"), Budget(nodes="0", reasons=("Empty",))), running("n")), PLAIN)
    )
    assert unlike["may go"] == "empty: 0 of 0; drifted, underutilized, unhealthy, sleep: 2 of 2"


def test_without_pricing_no_dollar_is_shown_anywhere() -> None:
    """OPS-804: disable-pricing."""
    view = view_of(pool(), running("n", "m", 1))
    options = ViewerOptions(shows_prices=False)
    assert "$" not in "".join(lines(view, options, 1.0))
    for make in (node_table, pool_table, spend_table):
        assert "$" not in str(shown(make(view, options)))


def test_flags_count_before_the_file_of_defaults(tmp_path: Path) -> None:
    """OPS-804: the same keys in ~/.eks-node-viewer; those of the cluster and of eks-node-viewer itself are passed over."""
    file = tmp_path / "defaults"
    file.write_text("# mine\nresources=memory\nnode-sort=creation=asc\ncontext=other\nstyle=#000000,#111111,#222222\n")
    options = viewer_options({"resources": "cpu,nvidia.com/gpu", "extra-labels": None}, file)
    assert options.resources == ("cpu", "nvidia.com/gpu")
    assert (options.sort_label, options.descending) == ("creation", False)
    assert options.style == ViewerStyle("#000000", "#111111", "#222222")


@pytest.mark.parametrize(
    ("key", "text"),
    [("node-sort", "zone=up"), ("style", "red"), ("node-selector", "a in ("), ("disable-pricing", "perhaps")],
)
def test_a_wrong_option_is_named_in_one_line(key: str, text: str) -> None:
    with pytest.raises(WrongInput, match=f"--{key}: .") as error:
        viewer_options({key: text}, Path("/nowhere"))
    assert "\n" not in str(error.value)


def test_a_wrong_line_of_the_file_is_named_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "defaults"
    file.write_text("resources=cpu\nnode_sort=creation=asc\n")
    with pytest.raises(WrongInput, match=r"defaults:2: 'node_sort' is no option; expected KEY=VALUE"):
        viewer_options({}, file)


def test_every_tab_has_rows_for_a_cluster_that_has_something_to_show_and_none_for_an_empty_one() -> None:
    full = view_of(
        pool(), running("n", "m", 1), pod("w", {"cpu": "1"}), events=[event("DisruptionTerminating", "NodeClaim", "n")]
    )
    for make in TABS.values():
        assert make(full, PLAIN).rows
        assert not make(view_of(), PLAIN).rows


def test_keys_of_rows_are_different() -> None:
    """Equal events, such as those of two Nodes' twins, are one row."""
    twice = [event("Nominated", "Pod", "w", "same"), event("Nominated", "Pod", "w", "same", seconds(5))]
    assert len(event_table(view_of(events=twice), PLAIN).rows) == 1


def test_texts_of_objects_cannot_move_the_cursor_of_the_terminal() -> None:
    assert text_cell("a\x1b[2Jb\nc").text == "a [2Jb c"


@pytest.mark.parametrize(
    ("after", "text"),
    [(45, "45s"), (150, "2m"), (3 * 3600 + 600, "3h10m"), (9 * 3600, "9h"), (3 * 86400, "3d"), (-5, "0s")],
)
def test_ages_are_written_as_kubectl_does(after: float, text: str) -> None:
    assert age_text(NOW, seconds(after)) == text


def test_a_sparkline_shows_the_last_values_against_the_highest_of_them() -> None:
    assert sparkline([9, 0, 1, 2], 3) == "▁▅█"
    assert sparkline([0, 0], 5) == "▁▁"
