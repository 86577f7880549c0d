"""`make soak`: draws the cases of the run by its seed, and closes with one line that says how to repeat it."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest

from support.examples import SOAK_CASES, SOAK_EXAMPLES, left_out

_OUTCOMES = ("passed", "failed", "error", "skipped")


class Soak:
    """Plug-in of a soak run, in the process that reports and in its workers."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._began = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep a few cases of every long series."""
        tests: dict[str, list[pytest.Item]] = defaultdict(list)
        for obj in items:
            if obj.get_closest_marker("soak"):
                tests[obj.nodeid.partition("[")[0]].append(obj)
        skipped = left_out(tests, self.seed)
        if skipped:
            config.hook.pytest_deselected(items=skipped)
            names = {element.nodeid for element in skipped}
            items[:] = [item for item in items if item.nodeid not in names]

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print seed, bounds, outcomes and time in one line."""
        counts = [f"{len(terminalreporter.getreports(outcome))} {outcome}" for outcome in _OUTCOMES]
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        terminalreporter.write_line(
            f"soak: {', '.join(counts)} in {minutes}:{seconds:02d} min; repeat with "
            f"make soak SEED={self.seed} SOAK_EXAMPLES={SOAK_EXAMPLES} SOAK_CASES={SOAK_CASES}"
        )
