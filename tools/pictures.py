"""Draws the pictures of the documents from what commands print: ``python tools/pictures.py``."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from karpenter.cli.main import app

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
