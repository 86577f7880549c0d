"""Workers of a parallel run send fewer reports: none for a set-up or a tear-down that passed.

Two of the three reports of a test say only that. Writing, sending and reading one takes a millisecond of two processes.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


class FailureReports:
    """Plug-in of a worker: it reports calls, and of set-ups and tear-downs those that failed or skipped the test."""

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test as pytest does, but for the reports."""
        place = {"nodeid": item.nodeid, "location": item.location}
        item.ihook.pytest_runtest_logstart(**place)
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(**place)
        return True
