"""Draws the pictures of the documents from what commands print and what the demo pays: ``python tools/pictures.py``."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from karpenter.cli.demo_runner import price_chart
from karpenter.cli.demo_scenario import ScenarioPlayer, build_scenario
from karpenter.cli.main import app
from karpenter.cli.top_run import silent_logs
from karpenter.instancetypes import ec2_packaged_types
from karpenter.simulation import LoopClock, SimulationConfig, run_virtual, running_cluster
from karpenter.simulation.simulated_cluster import NO_NODE_HEARTBEATS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
_COLUMNS = 112
#: How long a run took is another figure each time.
_TIMING = "decided in"
#: The viewer's monospaced font will do: a picture loads nothing from elsewhere.
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
PICTURES = {
    "plan.svg": ("plan", "-f", "examples/shop.yaml"),
    "explain.svg": ("explain", "pod", "training", "-n", "shop", "-f", "examples/shop.yaml"),
}
#: The chart of ``karpenter demo --pods 60 --svg FILE``.
DEMO = "demo.svg"
_DEMO_PODS, _DEMO_SEED, _DEMO_START = 60, 1, datetime(2026, 1, 1, 8, tzinfo=UTC)


class _Silence:
    """Tells nobody."""

    def phase(self, headline: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


def demo_chart() -> str:
    """What the demo pays against the lower bound, as an SVG. The same decisions give the same bytes."""

    async def main(clock: LoopClock) -> str:
        config = SimulationConfig(ec2_packaged_types.packaged_instance_types(), timing=NO_NODE_HEARTBEATS)
        async with running_cluster(clock, config) as stage:
            player = ScenarioPlayer(stage, build_scenario(_DEMO_PODS, _DEMO_SEED), _Silence())
            await player.run_until_load_falls()
            await player.scale_to_zero()
            return price_chart(stage, player, _DEMO_START).svg()

    with silent_logs():
        return run_virtual(main, _DEMO_START)


def picture(words: tuple[str, ...]) -> str:
    """What ``karpenter WORDS`` prints, as an SVG of a terminal. The same output gives the same bytes."""
    given = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
    outcome = CliRunner().invoke(app, given, env={"COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1"}, color=True)
    lines = [line for line in outcome.output.splitlines() if not Text.from_ansi(line).plain.startswith(_TIMING)]
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi("\n".join(lines).rstrip()))
    title = f"karpenter {' '.join(words)}"
    drawn = console.export_svg(title=title, unique_id=f"karpenter-{words[0]}")
    return _FONT_FACE.sub("", drawn)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, command in PICTURES.items():
        (FOLDER / name).write_text(picture(command), encoding="utf-8")
    (FOLDER / DEMO).write_text(demo_chart(), encoding="utf-8")
