"""Every screen of ``karpenter top`` as text, on a cluster that has something of everything: ``tools/top_screens.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Static

from karpenter.api.karpenter import Budget
from karpenter.api.meta import Condition
from karpenter.cli import planning_options
from karpenter.cli.top_app import TopApp, ViewerSetup
from karpenter.cli.top_history import RecentHistory
from karpenter.cli.top_options import ViewerOptions
from karpenter.cli.top_screens import TextWindow
from karpenter.cli.top_source import RecordedSource
from karpenter.cli.top_tables import TABS
from karpenter.console.console_input import ConsoleInput
from karpenter.console.decision_rows import DecisionKind, DecisionRow, RecordedDecisions
from karpenter.model import labels
from karpenter.settings import Settings
from support.applied_commands import CONSOLIDATABLE
from support.builders import annotated, claim, node, node_and_claim, pod, replaced, seconds, taint
from support.console_cases import console_input, event
from support.disruption_cases import drifted, on, pool, running

KEPT = Path(__file__).parents[1] / "unit" / "cli" / "screens"
#: Columns and lines: the smallest screen there is, and a large one.
SIZES = ((80, 24), (120, 40))
_DEADLINE_SECONDS = 60.0
_UNDERUTILIZED = Condition(type="DisruptionReason", status="True", reason="Underutilized")


@dataclass(frozen=True)
class _History:
    """What a controller kept: with it the lines over time do not depend on how often the screen was drawn."""

    def recent(self) -> RecentHistory:
        rows = (
            DecisionRow(
                seconds(-7200),
                DecisionKind.DISRUPTION,
                "Underutilized",
                ("web-old",),
                "-1 node +1 node (underutilized)",
                saving_per_hour=1.25,
                replaced_by=("web-new",),
                restarts=7,
            ),
            DecisionRow(
                seconds(-5400), DecisionKind.INTERRUPTION, "SpotInterrupted", ("spot-gone",), "EC2 takes it back"
            ),
        )
        names = frozenset({"web-old", "web-new", "spot-gone"})
        over_time = tuple(float(hour % 9) for hour in range(24))
        return RecentHistory(over_time, over_time[::-1], RecordedDecisions(rows, names))


def cluster() -> ConsoleInput:
    """Nodes in every state, a closed budget, a freeze, pods that fit nowhere, and events about all of it."""
    protected = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}
    leaving, *leaving_rest = running("leaving", "m", 1, conditions=(_UNDERUTILIZED,))
    own = {labels.INSTANCE_TYPE: "l", labels.ZONE: "z2", labels.CAPACITY_TYPE: "spot"}
    objects = (
        pool("np", Budget(nodes="0", schedule="0 0 * * *", duration="12h")),
        annotated(pool("frozen"), {labels.FREEZE: "release week"}),
        running("full", "s", 1, 0.9),
        running("half", "m", 2, capacity_type="spot"),
        running("young", "l", 1, conditions=()),
        running("drifted", "m", 1, pool="frozen", conditions=(CONSOLIDATABLE, *drifted(seconds(0)))),
        (running("held", "m"), on("held", 1, meta=protected)),
        (replaced(leaving, spec=replaced(leaving.spec, taints=(taint("karpenter.sh/disrupted"),))), leaving_rest),  # type: ignore[attr-defined]
        running("ending", "s", 1, deleted=True),
        claim("ordered"),
        claim("coming", {"cpu": 8}, labels=own, provider_id="p://coming", requests={"cpu": "6"}),
        node_and_claim("starting", {"cpu": 4}, initialized=False),
        node("foreign", {"cpu": 4}, labels={"eks-node-viewer/instance-price": "0.25"}),
        pod("huge", {"cpu": "100", "memory": "1Gi"}, meta={"creation_timestamp": seconds(-300)}),
        pod("small", {"cpu": "250m", "memory": "256Mi"}, meta={"creation_timestamp": seconds(-30)}),
    )
    events = [
        event("ConsolidationCandidate", "NodeClaim", "a", "replace: [a] -> [1 replacement(s)], savings: $0.25"),
        event("DisruptionTerminating", "NodeClaim", "a", "Disrupting Node: Underutilized", seconds(-60)),
        event("SpotInterrupted", "NodeClaim", "b", "EC2 takes it back", seconds(-90)),
        event("InsufficientCapacityError", "NodeClaim", "c", "no m in z1", seconds(-120)),
        event("Unconsolidatable", "Node", "half", "Can't replace with a cheaper node", seconds(-45)),
    ]
    return console_input(*objects, events=events, now=seconds(0))


async def screens(size: tuple[int, int]) -> Mapping[str, str]:
    """The text of every tab and window at this size, by name."""
    options = planning_options.disruption_options(Settings())
    app = TopApp(ViewerSetup(RecordedSource("a recording", cluster()), ViewerOptions(), options, _History()))
    found: dict[str, str] = {}
    async with app.run_test(size=size) as pilot, asyncio.timeout(_DEADLINE_SECONDS):
        while not app.is_complete:
            await pilot.pause(0.01)
        await app.refresh_view()
        for number, title in enumerate(TABS, 1):
            await pilot.press(str(number))
            await app.refresh_view()
            found[title.lower()] = await _text(app, pilot)
        await pilot.press("question_mark")
        found["help"] = await _text(app, pilot)
        await pilot.press("escape")
        for name, tab, word in (("explain-node", "1", "drifted"), ("explain-pod", "2", "huge")):
            await pilot.press(tab, "slash", *word, "enter")
            await app.refresh_view()
            await pilot.press("enter")
            await _explained(app, pilot)
            found[name] = await _text(app, pilot)
            await pilot.press("escape", "escape")
    return found


async def _explained(app: TopApp, pilot: Pilot[None]) -> None:
    while not isinstance(app.screen, TextWindow) or _content(app) == "computing ...":
        await pilot.pause(0.01)


def _content(app: TopApp) -> str:
    return str(app.screen.query_one("#window-text", Static).content)


async def _text(app: TopApp, pilot: Pilot[None]) -> str:
    await pilot.pause()
    return "".join(f"{line}\n" for line in _lines(app))


def _lines(app: TopApp) -> Iterator[str]:
    """What the terminal would show, without colors and without blanks at the ends of lines."""
    for strip in app.screen._compositor.render_strips():
        yield strip.text.rstrip()


def kept_file(name: str, size: tuple[int, int]) -> Path:
    """Where the text of a screen is kept."""
    return KEPT / f"{name}-{size[0]}x{size[1]}.txt"
