"""The chart of ``karpenter demo --svg``: USD per hour over the run, and the lower bound for the pods of each phase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 860, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 80
#: Names of phases in a line of the legend.
_NAMES_PER_LINE = 4
_GRID_LINES = 4
_STYLE = (
    "text{font:12px sans-serif;fill:#444}.grid{stroke:#ddd}.paid{fill:none;stroke:#2a7;stroke-width:2}"
    ".bound{fill:none;stroke:#c33;stroke-width:2;stroke-dasharray:5 4}.phase{stroke:#bbb;stroke-dasharray:2 3}"
)


@dataclass(frozen=True, slots=True)
class Step:
    """From ``seconds`` since the start on, ``usd_per_hour``."""

    seconds: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class PriceChart:
    """What was paid and the bound as steps, phases with their start in seconds, and the length of the run."""

    paid: Sequence[Step]
    bound: Sequence[Step]
    phases: Sequence[tuple[float, str]]
    seconds: float

    def svg(self) -> str:
        """The chart as an SVG document."""
        parts = [
            *self._grid(),
            *self._phase_marks(),
            *self._legend(),
            f'<polyline class="paid" points="{self._points(self.paid)}"/>',
            f'<polyline class="bound" points="{self._points(self.bound)}"/>',
            f'<text x="{_LEFT}" y="18" style="fill:#2a7">paid, $/h</text>',
            f'<text x="{_LEFT + 80}" y="18" style="fill:#c33">lower bound for the pods, $/h</text>',
        ]
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
            f"<title>USD per hour in the demo, against the lower bound</title><style>{_STYLE}</style>"
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
        )
        return "\n".join((head, *parts, "</svg>")) + "\n"

    @property
    def _top_price(self) -> float:
        return max((step.usd_per_hour for step in (*self.paid, *self.bound)), default=0.0) or 1.0

    def _x(self, seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / (self.seconds or 1.0)

    def _y(self, usd_per_hour: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * usd_per_hour / self._top_price

    def _points(self, steps: Sequence[Step]) -> str:
        """The corners of a step function, up to the end of the run."""
        corners: list[tuple[float, float]] = []
        for step in steps:
            if corners:
                corners.append((step.seconds, corners[-1][1]))
            corners.append((step.seconds, step.usd_per_hour))
        if corners:
            corners.append((self.seconds, corners[-1][1]))
        return " ".join(f"{self._x(seconds):.1f},{self._y(price):.1f}" for seconds, price in corners)

    def _grid(self) -> Iterable[str]:
        for line in range(_GRID_LINES + 1):
            price = self._top_price * line / _GRID_LINES
            y = f"{self._y(price):.1f}"
            yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y}" text-anchor="end" dominant-baseline="middle">{price:.2f}</text>'

    def _phase_marks(self) -> Iterable[str]:
        for number, (seconds, name) in enumerate(self.phases, 1):
            x = f"{self._x(seconds):.1f}"
            yield f'<line class="phase" x1="{x}" x2="{x}" y1="{_TOP - 10}" y2="{_HEIGHT - _BOTTOM}"/>'
            yield f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 20}"><title>{escape(name)}</title>{number}</text>'

    def _legend(self) -> Iterable[str]:
        """The names of the phases up to their figures."""
        names = [f"{number} {name.partition(':')[0]}" for number, (_, name) in enumerate(self.phases, 1)]
        for line, names_of_line in enumerate(
            names[first : first + _NAMES_PER_LINE] for first in range(0, len(names), _NAMES_PER_LINE)
        ):
            text = escape("   ".join(names_of_line))
            yield f'<text x="{_LEFT}" y="{_HEIGHT - 32 + 18 * line}" xml:space="preserve">{text}</text>'
