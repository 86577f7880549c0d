"""The page about metrics names what is exported, with its type and labels, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from karpenter.api.karpenter import NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.metrics import Metrics
from karpenter.metrics.exposition import render_sync
from karpenter.metrics.legacy_names import LEGACY_NAMES
from karpenter.scheduling.solution import PlacedPods, Solution
from support.builders import NOW, container, node_and_claim, node_pool, owner, pod, replaced
from support.metrics_scrape import Scrape
from support.observed_cluster import ObservedCluster

EC2 = "## EC2 instances"
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
KINDS = ("nodeclaim", "nodepool", "node", "kwoknodeclass")
STABILITY = {"stable", "beta", "alpha", "deprecated"}
_NODE = {"node_name", "nodepool", "phase", "managed", "zone", "region"} | {
    "instance_type",
    "arch",
    "os",
    "capacity_type",
    "windows_build",
}
_CARRIED = {
    "nodeclaim": {"karpenter_sh_nodepool", "karpenter_kwok_sh_kwoknodeclass"},
    "node": {"karpenter_sh_nodepool", "karpenter_kwok_sh_kwoknodeclass", "karpenter_sh_initialized"},
}


@dataclass(frozen=True)
class Row:
    """What the page says of a series."""

    type: str
    labels: frozenset[str]
    mark: str
    stability: str


def _rows(section: str) -> Iterator[tuple[str, Row]]:
    for line in section.splitlines():
        if not line.startswith("| `"):
            continue
        series, type_, labels, stability, _meaning = (cell.strip() for cell in line.strip("|").split("|"))
        name, _, mark = series.partition(" ")
        for kind in KINDS if "<kind>" in name else ("",):
            yield name.strip("`").replace("<kind>", kind), Row(type_, _labels(labels, kind), mark, stability)


def _labels(text: str, kind: str) -> frozenset[str]:
    own = frozenset(re.findall(r"`(\w+)`", text))
    of_node = _NODE if re.search(r"\bN\b", text) else set()
    carried = _CARRIED.get(kind, set()) if "+" in text else set()
    return own | of_node | carried


def _sections() -> tuple[str, str]:
    """The page without its chapter on EC2, and that chapter."""
    before, rest = PAGE.read_text().split(EC2)
    chapter, after = rest.split("\n## ", 1)
    return before + after, chapter


ROWS: Mapping[str, Row] = dict(_rows(_sections()[0]))


def test_the_page_names_every_series_and_its_type() -> None:
    assert {name: row.type for name, row in ROWS.items()} == ObservedCluster().scrape().types()


def test_every_row_says_how_stable_its_series_is() -> None:
    assert {row.stability for row in ROWS.values()} == STABILITY


def test_what_a_setting_takes_away_is_marked() -> None:
    """OPS-320; counted series are declared all the same, and never counted."""
    without = set(ObservedCluster(only_essentials=True).scrape().types())
    declared = set(Scrape(render_sync(Metrics().registry)).types())
    gone = {name for name, row in ROWS.items() if row.mark}
    assert gone - declared == set(ROWS) - without
    assert {name for name in gone & declared if not name.startswith("karpenter_pods_")} == set()


def test_only_marked_series_name_single_objects() -> None:
    objects = {"name", "node_name", "node"}
    naming = {name for name, row in ROWS.items() if row.labels & objects and not name.startswith("workqueue_")}
    naming -= {"leader_election_master_status", "leader_election_slowpath_total"}  # the name of a lease
    assert naming == {name for name, row in ROWS.items() if row.mark == "◆"}


@pytest.mark.parametrize("name", [name for name in ROWS if hasattr(Metrics(), name.removeprefix("karpenter_"))])
def test_the_page_gives_the_labels_of_counted_series(name: str) -> None:
    series = getattr(Metrics(), name.removeprefix("karpenter_"))
    declared = series._labels if hasattr(series, "_labels") and not callable(series._labels) else series._labelnames
    assert frozenset(declared) == ROWS[name].labels


def _turned(wire: Wire, status: str) -> Wire:
    """The object with a condition, on its way out."""
    ready = Condition(type="Ready", status=status, reason="Why", last_transition_time=NOW)
    return replaced(
        wire,
        status=replaced(wire.status, conditions=(ready,)),  # type: ignore[attr-defined]
        metadata=replaced(wire.metadata, deletion_timestamp=NOW, creation_timestamp=NOW),  # type: ignore[attr-defined]
    )


async def _everything() -> Scrape:
    """A little of everything that can be seen of a cluster."""
    seen = ObservedCluster()
    pool = _healthy(node_pool(limits={"cpu": 9}))
    objects = (*node_and_claim("n", {"cpu": "4"}), pool, KWOKNodeClass(metadata=ObjectMeta(name="kc")))
    for status in ("False", "True"):
        seen.put(*(_turned(wire, status) for wire in objects))
    limited = (container({"cpu": "1"}, limits={"cpu": "1"}),)
    daemon = {"owner_references": (owner("DaemonSet", "logs"),)}
    seen.put(pool, *node_and_claim("m", {"cpu": "4"}), pod("d", meta=daemon, node_name="m", containers=limited))
    seen.put(pod("p", {"cpu": "1"}), pod("undecided", {"cpu": "1"}), pod("planned", {"cpu": "1"}))
    seen.decided(Solution(placed_on_existing=(PlacedPods("claim-m", "m", (pod("planned"),)),)))
    await seen.refresh()
    seen.gone(*(_turned(wire, "True") for wire in objects if not isinstance(wire, NodePool)))
    seen.put(*(_turned(obj, "True") for obj in (*node_and_claim("o", {"cpu": "4"}), pool, objects[3])))
    seen.put(pod("undecided-still", {"cpu": "1"}))
    return seen.scrape()


def _healthy(pool: NodePool) -> NodePool:
    """A pool whose nodes register, and which has some."""
    good = Condition(type="NodeRegistrationHealthy", status="True")
    return replaced(pool, status=replaced(pool.status, resources={"cpu": "4"}, conditions=(good,)))


def _row(series: str) -> tuple[str, Row]:
    """The name and row a sample belongs to."""
    name = series if series in ROWS else re.sub("_(bucket|sum|count)$", "", series)
    return name, ROWS[name]


async def test_series_have_the_labels_the_page_gives() -> None:
    seen: set[str] = set()
    for series, labels, _ in await _everything():
        name, row = _row(series)
        assert frozenset(labels) - {"le", "quantile"} == row.labels, name
        seen.add(name)
    assert {name for name, row in ROWS.items() if row.mark} - seen == set()


async def test_no_other_series_names_a_single_object() -> None:
    """OPS-403: label sets stay bounded however many objects come and go."""
    names = {"n", "m", "o", "p", "claim-n", "claim-m", "uid-p"}
    for series, labels, _ in await _everything():
        if _row(series)[1].mark != "◆":
            assert not names & set(labels.values()), series


def test_every_name_that_replaced_an_older_one_is_exported() -> None:
    """OPS §5.9: the page lists every older name that can be served, and a dashboard that follows the list finds data."""
    page = PAGE.read_text(encoding="utf-8")
    series = {name for name, _ in _rows(page)}
    renames = [
        line.partition(": now ") for line in page.splitlines() if line.startswith("* `karpenter_") and ": now `" in line
    ]
    listed = {name for older, _, _ in renames for name in re.findall(r"`(karpenter_\w+)`", older)}
    replacements = [name for _, _, newer in renames for name in re.findall(r"`(karpenter_\w+)`", newer)]
    assert {f"karpenter_{older}" for older in LEGACY_NAMES} <= listed
    assert [name for name in replacements if name not in series] == []
