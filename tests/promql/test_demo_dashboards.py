"""The story of ``karpenter demo``, read as Prometheus reads it: after it every panel of every dashboard shows something."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from monitoring.files import DASHBOARDS

from karpenter.cli.demo_scenario import ScenarioPlayer, build_scenario
from karpenter.instancetypes import ec2_packaged_types
from karpenter.metrics import exposition
from karpenter.simulation import LoopClock, SimulatedCluster, SimulationConfig, run_virtual, running_cluster
from promql.engine import Scraped, evaluated_at
from support.dashboards import KARPENTERS_PANELS, queries

pytestmark = pytest.mark.cluster  # the engine of Prometheus is built as the control plane is

START = datetime(2026, 1, 1, tzinfo=UTC)
#: Prometheus' usual interval.
INTERVAL_SECONDS = 15
_DISRUPTED = "sum by (reason) (karpenter_nodeclaims_disrupted_total)"
#: Panels about what the demo has not: replicas, requests over HTTP, a cloud whose calls are measured, NodePools with limits. A
#: controller process shows them in tests/cluster/test_metrics.py.
WITHOUT_DEMO = {"Leader", "Requests to the API server", "Calls to the cloud", "use of limits", "Use of NodePool limits"}


class Recorder:
    """A narrator that keeps what comes out."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def phase(self, headline: str) -> None:
        """Chapters are not kept."""

    def note(self, text: str) -> None:
        self.notes.append(text)


def recorded_demo(narrator: Recorder) -> tuple[list[Scraped], list[str]]:
    """The scrapes of a Prometheus during the demo, and what the demo complains about."""
    scrapes: list[Scraped] = []

    async def scraping(cluster: SimulatedCluster) -> None:
        while True:
            text = (await exposition.render(cluster.manager.metrics.registry)).decode()
            scrapes.append(Scraped(int(cluster.clock.now().timestamp()), text + "\n# TYPE up gauge\nup 1\n"))
            await asyncio.sleep(INTERVAL_SECONDS)

    async def main(clock: LoopClock) -> list[str]:
        types = ec2_packaged_types.packaged_instance_types()
        few = tuple(one for one in types if one.name.startswith(("m6i.", "c6i.", "r6i.")))
        async with running_cluster(clock, SimulationConfig(few)) as cluster:
            watching = asyncio.create_task(scraping(cluster))
            player = ScenarioPlayer(cluster, build_scenario(150, 1), narrator)
            await player.run_until_load_falls()
            await player.scale_to_zero()
            watching.cancel()
            return player.failures

    return scrapes, run_virtual(main, START)


def test_every_panel_shows_something_after_the_demo() -> None:
    """OPS-V3: arrivals, a rush, a spot interruption, a pod that fits nowhere, consolidation and scaling to zero."""
    narrator = Recorder()
    scrapes, failures = recorded_demo(narrator)
    assert failures == []
    for outcome in ("survived: ", "unschedulable: ", "consolidation: "):
        assert any(note.startswith(outcome) for note in narrator.notes)
    asked = {
        (board.title, title, text) for board in DASHBOARDS for title, texts in queries(board).items() for text in texts
    } | {("Karpenter", title, text) for title, text in KARPENTERS_PANELS.items()}
    rows = sorted(asked)
    moments = [one.seconds for one in scrapes[3 :: max(1, len(scrapes) // 12)]]
    dated = [(row, seconds) for seconds in moments for row in rows]
    *answers, disrupted = evaluated_at(
        scrapes, [*((text, seconds) for (_, _, text), seconds in dated), (_DISRUPTED, scrapes[-1].seconds)]
    )
    assert [answer.error for answer in answers if answer.error] == []
    shown = {row for (row, _), answer in zip(dated, answers, strict=True) if answer.samples}
    assert {title for _, title, _ in rows} - {title for _, title, _ in shown} == WITHOUT_DEMO
    assert [row for row in rows if row not in shown and row[1] not in WITHOUT_DEMO] == []
    assert {dict(of)["reason"] for of in disrupted.samples} == {"empty", "underutilized"}
