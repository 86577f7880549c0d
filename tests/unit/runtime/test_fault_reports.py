"""One log line per outage: errors of a server while it stops and starts are not logged unless they last."""

from __future__ import annotations

import pytest

from karpenter.kube.errors import (
    Forbidden,
    KubeError,
    RequestNotSent,
    ServerUnavailable,
    TooManyRequests,
    Unauthorized,
    kind_not_served,
)
from karpenter.runtime.apiserver_faults import GRACE_SECONDS, ApiServerFaultReporter

REFUSED = RequestNotSent("GET /api/v1/nodes: Connection refused")
CUT_OFF = ServerUnavailable("GET /api/v1/pods: the server closed the connection")
UNTRUSTED = RequestNotSent("GET /api/v1/pods: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
UNHEALTHY = ServerUnavailable("etcd is away", status=500)
FORBIDDEN = Forbidden("pods is forbidden", status=403)
OF_A_START = (
    FORBIDDEN,
    Unauthorized("Unauthorized", status=401),
    TooManyRequests("the server is starting"),
    kind_not_served("nodeclaims", "karpenter.sh/v1"),
    UNHEALTHY,
)


class Listener:
    """The log lines, second by second."""

    def __init__(self) -> None:
        self._complaints = ApiServerFaultReporter(str)
        self.now = 1000.0
        self.said: list[str] = []
        self.recoveries = 0

    def log_lines_after(self, *faults: KubeError, seconds: float = 1.0) -> list[str]:
        """What is said while these faults last that long."""
        before = len(self.said)
        end = self.now + seconds
        while self.now < end:
            news = self._complaints.update(faults, self.now)
            self.said.extend(news.lines)
            self.recoveries += news.has_recovered
            self.now += 1.0
        return self.said[before:]


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_a_server_that_is_away_is_one_cause_however_it_shows(listener: Listener) -> None:
    assert listener.log_lines_after(REFUSED, CUT_OFF) == [str(REFUSED)]
    assert listener.log_lines_after(CUT_OFF, seconds=100) == []
    assert listener.log_lines_after(CUT_OFF, REFUSED, REFUSED, seconds=100) == []
    assert listener.recoveries == 0


@pytest.mark.parametrize("fault", OF_A_START, ids=lambda fault: type(fault).__name__)
def test_errors_of_a_server_in_its_first_seconds_are_not_logged(listener: Listener, fault: KubeError) -> None:
    listener.log_lines_after(REFUSED, seconds=20)
    assert listener.log_lines_after(REFUSED, fault, seconds=5) == []
    assert listener.log_lines_after(fault, seconds=15) == []
    assert (listener.log_lines_after(), listener.recoveries) == ([], 1)


@pytest.mark.parametrize("fault", OF_A_START, ids=lambda fault: type(fault).__name__)
def test_errors_that_last_longer_are_logged_once(listener: Listener, fault: KubeError) -> None:
    listener.log_lines_after(REFUSED, seconds=20)
    assert listener.log_lines_after(fault, seconds=GRACE_SECONDS) == []
    assert listener.log_lines_after(fault, seconds=300) == [str(fault)]


def test_a_short_error_after_an_outage_is_not_logged(listener: Listener) -> None:
    listener.log_lines_after(REFUSED)
    for _ in range(2):
        assert listener.log_lines_after(FORBIDDEN, seconds=10) == []
        assert listener.log_lines_after(seconds=3) == []
    assert listener.recoveries == 1


def test_a_missing_right_is_logged_at_once_while_the_server_is_healthy(listener: Listener) -> None:
    listener.log_lines_after(seconds=5)
    assert listener.log_lines_after(FORBIDDEN) == [str(FORBIDDEN)]


def test_a_missing_right_is_logged_at_once_long_after_an_outage(listener: Listener) -> None:
    listener.log_lines_after(REFUSED)
    listener.log_lines_after(seconds=GRACE_SECONDS)
    assert listener.log_lines_after(FORBIDDEN) == [str(FORBIDDEN)]


def test_every_missing_right_is_logged(listener: Listener) -> None:
    nodes = Forbidden("nodes is forbidden", status=403)
    assert listener.log_lines_after(nodes, FORBIDDEN) == [str(nodes), str(FORBIDDEN)]


def test_a_server_with_lasting_internal_errors_is_logged(listener: Listener) -> None:
    assert listener.log_lines_after(UNHEALTHY, seconds=GRACE_SECONDS) == []
    assert listener.log_lines_after(ServerUnavailable("etcd is still away", status=500), UNHEALTHY) == [
        "etcd is still away"
    ]
    assert listener.log_lines_after(UNHEALTHY, seconds=300) == []


def test_a_certificate_that_is_not_trusted_is_no_outage(listener: Listener) -> None:
    assert listener.log_lines_after(UNTRUSTED) == [str(UNTRUSTED)]
    assert listener.log_lines_after(UNTRUSTED, FORBIDDEN) == [str(FORBIDDEN)]


def test_the_next_outage_is_logged_again(listener: Listener) -> None:
    assert listener.log_lines_after(REFUSED, seconds=5) == [str(REFUSED)]
    assert (listener.log_lines_after(seconds=5), listener.recoveries) == ([], 1)
    assert listener.log_lines_after(CUT_OFF, seconds=5) == [str(CUT_OFF)]
    assert (listener.log_lines_after(seconds=5), listener.recoveries) == ([], 2)


def test_the_end_of_an_unlogged_outage_is_not_logged(listener: Listener) -> None:
    listener.log_lines_after(UNHEALTHY, seconds=5)
    listener.log_lines_after(seconds=5)
    assert (listener.said, listener.recoveries) == ([], 0)
