"""What a worker of a parallel run reports: how tests end. That one begins or a set-up passed is no news.

Four of five messages about a test say only that. Writing, sending and reading one takes up to a millisecond of two processes.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


class NewsOnly:
    """Plug-in of a worker: it reports calls, and of set-ups and tear-downs those that failed or skipped the test."""

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test as pytest does, but for the reports."""
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True
