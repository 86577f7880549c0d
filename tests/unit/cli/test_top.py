"""``karpenter top`` as people use it: keys on the screen, watches, files, the demo."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.events import MouseScrollDown
from textual.pilot import Pilot
from textual.widgets import Input, Static, Tab
from typer.testing import CliRunner

from karpenter.api import kinds
from karpenter.api.capacity_schedule import CapacitySchedule
from karpenter.api.kinds import Kind
from karpenter.api.meta import OwnerReference, Wire
from karpenter.cli import planning_options
from karpenter.cli.demo_options import DemoOptions
from karpenter.cli.demo_top import DemoSource
from karpenter.cli.main import app as commands
from karpenter.cli.terminal import CommandError
from karpenter.cli.top_app import TopApp, ViewerSetup
from karpenter.cli.top_command import viewer_source
from karpenter.cli.top_options import ViewerOptions
from karpenter.cli.top_screens import TextWindow
from karpenter.cli.top_source import FollowedFeatures, RecordedSource, WatchedSource
from karpenter.cli.top_table_widget import LiveTable
from karpenter.console.viewer_source import ViewerSource
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.kube.errors import Forbidden
from karpenter.kube.protocol import Listing
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.model.feature_gates import FeatureGate
from karpenter.settings import Settings, resolve_settings
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.builders import node, pod, replaced
from support.console_cases import console_input, event
from support.disruption_cases import pool, running

DEADLINE_SECONDS = 60.0
CLUSTER = (
    pool(),
    running("small", "s", 1),
    running("large", "l", 1),
    running("medium", "m", 1, capacity_type="spot"),
    pod("huge", {"cpu": "100"}),
)


def viewer(source: ViewerSource | None = None) -> TopApp:
    given = console_input(
        *CLUSTER, events=[event("DisruptionTerminating", "NodeClaim", "gone", "Disrupting Node: Empty")]
    )
    options = planning_options.disruption_options(Settings())
    return TopApp(ViewerSetup(source or RecordedSource("a recording", given), ViewerOptions(), options))


async def until(condition: Callable[[], bool], pilot: Pilot[None]) -> None:
    """Wait for the screen; fails at the deadline."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await pilot.pause(0.01)


def table(app: TopApp) -> LiveTable:
    (found,) = (table for table in app.query(LiveTable) if table.has_focus)
    return found


def names(app: TopApp) -> list[str]:
    return [row.cells[0].text for row in table(app).rows]


async def test_keys_choose_tabs_sort_search_and_explain() -> None:
    """OPS-802, OPS-805: one walk through the screen by keyboard alone, at 80x24."""
    app = viewer()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.is_complete, pilot)
        assert names(app) == ["large", "medium", "small"]
        await pilot.press("s", "s")
        assert names(app) == ["large", "medium", "small"], "by the share of CPU, smallest first"
        await pilot.press("r")
        assert names(app) == ["small", "medium", "large"]
        await pilot.press("down", "slash", *"spot")
        search = app.query_one("#search", Input)
        assert search.has_focus
        await pilot.press("enter")
        assert names(app) == ["medium"]
        await pilot.press("enter")
        await until(lambda: "Node medium" in _window_text(app), pilot)
        await pilot.press("escape", "escape")
        assert sorted(names(app)) == ["large", "medium", "small"]
        await pilot.press("2")
        await until(lambda: names(app) == ["default/huge"], pilot)
        assert "unschedulable" in table(app).rows[0].search_text
        await pilot.press("3")
        await until(lambda: any("-1 node (empty)" in row.search_text for row in table(app).rows), pilot)
        await pilot.press("question_mark")
        assert "consolidateAfter" in _window_text(app)
        await pilot.press("q", "q")
    assert app.return_code == 0


def _window_text(app: TopApp) -> str:
    screen = app.screen
    return str(screen.query_one("#window-text", Static).content) if isinstance(screen, TextWindow) else ""


async def test_a_click_on_a_title_sorts_and_a_second_one_reverses() -> None:
    app = viewer()
    async with app.run_test(size=(120, 30)) as pilot:
        await until(lambda: app.is_complete, pilot)
        for order in (["large", "medium", "small"], ["small", "medium", "large"]):
            await pilot.click(table(app), offset=(1, 0))
            assert names(app) == order


async def test_the_mouse_chooses_tabs_rows_and_explanations_and_scrolls() -> None:
    nodes = [running(f"n{number:03}", "m", 1) for number in range(60)]
    app = viewer(RecordedSource("a recording", console_input(pool(), nodes, CLUSTER[-1])))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.is_complete, pilot)
        shown = table(app)
        await pilot.click(shown, offset=(1, 4))
        assert shown.selected_row is not None
        assert shown.selected_row.cells[0].text == "n003"
        await pilot.click(shown, offset=(1, 4))
        await until(lambda: "Node n003" in _window_text(app), pilot)
        await pilot.press("escape")
        shown.post_message(MouseScrollDown(shown, 1, 4, 0, 1, 0, False, False, False))
        await until(lambda: shown.scroll_offset.y > 0, pilot)
        (tab,) = (tab for tab in app.query(Tab) if tab.label_text == "Pending")
        await pilot.click(tab)
        await until(lambda: table(app) is not shown and names(app) == ["default/huge"], pilot)


async def test_a_key_writes_the_screen_as_svg_or_says_why_not(tmp_path: Path) -> None:
    options = planning_options.disruption_options(Settings())
    for folder in (tmp_path, tmp_path / "gone"):
        setup = ViewerSetup(
            RecordedSource("a recording", console_input(*CLUSTER)), ViewerOptions(), options, snapshot_directory=folder
        )
        app = TopApp(setup)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda app=app: app.is_complete, pilot)
            await pilot.press("p")
            await until(lambda app=app: bool(app._notifications), pilot)
            (said,) = (notification.message for notification in app._notifications)
            if folder.exists():
                (picture,) = folder.glob("*.svg")
                assert said == f"picture: {picture}"
                assert "medium" in picture.read_text()
            else:
                assert said.startswith(f"no picture: {folder} cannot be written")


async def test_the_cursor_stays_on_its_node_when_others_come() -> None:
    app = viewer()
    async with app.run_test(size=(120, 30)) as pilot:
        await until(lambda: app.is_complete, pilot)
        await pilot.press("end")
        shown = table(app)
        assert shown.selected_row is not None
        key = shown.selected_row.key
        shown.sort_by(0)
        assert shown.selected_row is not None
        assert shown.selected_row.key == key


async def test_markup_in_names_is_text() -> None:
    """Names and messages come from other people's objects: they neither style the screen nor break it."""
    evil = replaced(CLUSTER[-1], metadata=replaced(CLUSTER[-1].metadata, name="[red]x[/]"))
    given = console_input(*CLUSTER[:-1], evil, events=[event("Bad", "NodeClaim", "[/b]", "[@click=app.quit]x[/]")])
    app = viewer(RecordedSource("[/nothing]", given))
    async with app.run_test(size=(120, 30)) as pilot:
        await until(lambda: app.is_complete, pilot)
        await pilot.press("2")
        await until(lambda: names(app) == ["default/[red]x[/]"], pilot)
        await pilot.press("enter")
        await until(lambda: "[red]x[/]" in _window_text(app), pilot)


class _ForNodesAndPods(MemoryKube):
    """A connection that may read Nodes and Pods, and nothing else."""

    async def list(self, kind: Kind[Wire], namespace: str = "", **selectors: str) -> Listing[Wire]:  # type: ignore[override]
        if kind not in (kinds.NODE, kinds.POD):
            raise Forbidden(f"{kind.plural} is forbidden")
        return await super().list(kind, namespace, **selectors)

    pages = None  # so that every list passes here


async def test_a_cluster_is_followed_and_what_may_not_be_read_is_named() -> None:
    """OPS-803: Nodes and Pods are enough; a Node that comes later appears by itself, one that goes disappears."""
    kube = _ForNodesAndPods(MemoryServer(SystemClock()))
    await kube.create(kinds.NODE, node("first", {"cpu": 4}))
    source = WatchedSource("a cluster", kube, lambda pools: {})
    app = viewer(source)
    async with app.run_test(size=(120, 30)) as pilot:
        await until(lambda: names(app) == ["first"], pilot)
        await kube.create(kinds.NODE, node("second", {"cpu": 4}))
        await until(lambda: sorted(names(app)) == ["first", "second"], pilot)
        await kube.delete(kinds.NODE, "first")
        await until(lambda: names(app) == ["second"], pilot)
        kinds_left_out = "nodeclaims, nodepools, events, namespaces, daemonsets, poddisruptionbudgets, configmaps"
        assert source.fault() == f"no right to list and watch {kinds_left_out}"


@pytest.mark.parametrize(("is_included", "waiting"), [(True, ["tried", "untried"]), (False, ["tried"])])
async def test_untried_siblings_wait_where_the_controller_counts_them_as_pending(
    is_included: bool, waiting: list[str]
) -> None:
    kube = MemoryKube(MemoryServer(SystemClock()))
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="web-1", controller=True)
    meta = {"owner_references": (owner,), "uid": "", "creation_timestamp": None}
    for name in ("tried", "untried"):
        await kube.create(kinds.POD, pod(name, {"cpu": "1"}, meta=meta))
    mark = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}
    await kube.patch(kinds.POD, "tried", mark, "default", subresource="status")
    source = WatchedSource("a cluster", kube, lambda pools: {}, FollowedFeatures(untried_pods=is_included))
    following = asyncio.create_task(source.run())
    while (given := source.current()) is None:
        await asyncio.sleep(0)
    following.cancel()
    groups = given.snapshot.pod_groups
    assert sorted(each.metadata.name for group in groups for each in group.pods) == waiting


_ALWAYS_ASLEEP = {"nodePools": {"names": ["default"]}, "timeZone": "UTC", "windows": [], "otherwise": "Asleep"}


def _schedule(name: str, spec: dict[str, object]) -> CapacitySchedule:
    wire = {"metadata": {"name": name}, "spec": spec}
    return kinds.CAPACITY_SCHEDULE.decode(json.dumps(wire).encode())


async def test_node_pools_sleep_on_the_screen_as_in_a_controller_with_the_gate() -> None:
    """A schedule that cannot be used is named and changes nothing; what keeps a NodePool awake counts at once."""
    kube = MemoryKube(MemoryServer(SystemClock()))
    await kube.create(kinds.NODE_POOL, pool("default"))
    await kube.create(kinds.CAPACITY_SCHEDULE, _schedule("nights", _ALWAYS_ASLEEP))
    await kube.create(kinds.CAPACITY_SCHEDULE, _schedule("odd", {**_ALWAYS_ASLEEP, "wake": {"warm": "buffer"}}))
    await kube.create(kinds.POD, pod("p", {"cpu": "1"}))
    source = WatchedSource(
        "a cluster", kube, lambda pools: {}, FollowedFeatures(gates=frozenset({FeatureGate.CAPACITY_SCHEDULE}))
    )
    following = asyncio.create_task(source.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (given := source.current()) or not given.snapshot.sleeping_pools:
            await asyncio.sleep(0.01)
        assert {name: sleep.cause for name, sleep in given.snapshot.sleeping_pools.items()} == {
            "default": "CapacitySchedule nights"
        }
        assert source.fault() == "CapacitySchedule odd: spec.wake.warm: buffer needs the feature gate CapacityBuffer"
        awake = {"metadata": {"annotations": {labels.KEEP_AWAKE_UNTIL: "2999-01-01T00:00:00Z"}}}
        await kube.patch(kinds.POD, "p", awake, "default")
        while (given := source.current()) is None or given.snapshot.sleeping_pools:
            await asyncio.sleep(0.01)
    following.cancel()


@pytest.mark.parametrize("gates", ["", "CapacitySchedule=true"])
def test_node_pools_of_recorded_files_sleep_with_the_gate_only(gates: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    schedule = _schedule("nights", _ALWAYS_ASLEEP)
    encoded = [kinds.NODE_POOL.encode(pool("default")), kinds.CAPACITY_SCHEDULE.encode(schedule)]
    items = [json.loads(text) for text in encoded]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    settings = resolve_settings({"feature_gates": gates} if gates else {}, {})
    source = viewer_source(planning_options.InputOptions([str(file)]), settings)
    given = source.current()
    assert given is not None
    assert set(given.snapshot.sleeping_pools) == ({"default"} if gates else set())


def _no_types(_pools: object) -> dict[str, TypeIndex]:
    raise CommandError("the types of NodePool np are not known")


async def test_types_that_cannot_be_found_cost_prices_and_not_the_view() -> None:
    kube = MemoryKube(MemoryServer(SystemClock()))
    await kube.create(kinds.NODE, node("n", {"cpu": 4}))
    await kube.create(kinds.NODE_POOL, pool())
    source = WatchedSource("a cluster", kube, _no_types)
    app = viewer(source)
    async with app.run_test(size=(120, 30)) as pilot:
        await until(lambda: names(app) == ["n"] and bool(source.fault()), pilot)
        assert source.fault() == "the types of NodePool np are not known"


async def test_the_demo_plays_on_the_screen() -> None:
    app = viewer(DemoSource(DemoOptions(4, 1, 100.0, None, None, None)))
    async with app.run_test(size=(120, 30)) as pilot:
        await until(
            lambda: any("ready" in row.search_text and "$0." in row.search_text for row in table(app).rows), pilot
        )
        assert app.query_one("#status", Static).content != ""


def test_a_recorded_cluster_becomes_a_picture_with_its_events(tmp_path: Path) -> None:
    """Files as `kubectl get -o json` writes them, events too."""
    recording = tmp_path / "cluster.json"
    encoded = [
        kinds.NODE.encode(node("recorded-node", {"cpu": 4})),
        kinds.EVENT.encode(event("Nominated", "Pod", "web")),
    ]
    items = [json.loads(text) for text in encoded]
    recording.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    picture = tmp_path / "picture.svg"
    done = CliRunner().invoke(commands, ["top", "-f", str(recording), "--svg", str(picture)])
    assert done.exit_code == 0, done.output
    assert "recorded-node" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["top", "-f", "NODES", "--svg", "/nowhere/x.svg"], "--svg=/nowhere/x.svg: cannot be written"),
        (["top", "-f", "NODES"], "karpenter top needs a terminal; use --svg FILE"),
        (["top", "--style", "red"], "--style: 'red' are no colors"),
        (["demo", "--top", "--serve"], "karpenter demo: --top and --console go with --pods, --seed and --speed only"),
    ],
)
def test_a_mistake_ends_with_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_bytes(kinds.NODE.encode(node("n", {"cpu": 4})))
    done = CliRunner().invoke(commands, [str(file) if word == "NODES" else word for word in arguments])
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith(message)


def test_no_other_command_imports_textual() -> None:
    """Its import takes half a second."""
    script = (
        "import importlib, sys; from karpenter.cli.main import COMMANDS;"
        "[importlib.import_module(entry.target.partition(':')[0]) for entry in COMMANDS.values()];"
        "import karpenter.manager_process; print([name for name in sys.modules if name.startswith('textual')])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
