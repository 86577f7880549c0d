"""What ``karpenter top`` knows beside the objects of the cluster: the controller's history, from its file or from its console."""

from __future__ import annotations

import sqlite3
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec

from karpenter.cli.terminal import WrongInput
from karpenter.console.decision_rows import DecisionKind, DecisionRow, RecordedDecisions
from karpenter.history.history_store import HistoryStore, HistoryUnreadable, readable_history
from karpenter.kube import tls
from karpenter.kube.proxies import proxy_for
from karpenter.model.texts import why_unreadable
from karpenter.webconsole import history_document

#: So much of the history is shown.
SHOWN = timedelta(hours=24)
_MAX_SAMPLES, _MAX_ROWS = 240, 500
_TIMEOUT_SECONDS = 10.0
_HOW_TO_GET_A_TOKEN = "kubectl create token NAME > FILE makes one"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class HistoryUnavailable(Exception):
    """The history cannot be had now; the message says why."""


@dataclass(frozen=True)
class RecentHistory:
    """The last day. ``prices``: USD per hour, ``pending``: pods, both in the order of time.

    ``decisions``: None without a history.
    """

    prices: tuple[float, ...] = ()
    pending: tuple[float, ...] = ()
    decisions: RecordedDecisions | None = None


class HistorySource(Protocol):
    """Where the history comes from. It is asked in a thread."""

    def recent(self) -> RecentHistory:
        """The last day. Raises ``HistoryUnavailable``."""


class NoHistory:
    """No history: decisions are those of which objects and events tell."""

    def recent(self) -> RecentHistory:
        """Nothing."""
        return RecentHistory()


@dataclass(frozen=True)
class FileHistory:
    """The file of a controller, or a copy of it."""

    store: HistoryStore

    def recent(self) -> RecentHistory:
        """The last day. Raises ``HistoryUnavailable``."""
        since = datetime.now(UTC) - SHOWN
        try:
            samples = self.store.samples(since, _MAX_SAMPLES)
            decisions = self.store.decisions(since, _MAX_ROWS)
            interruptions = self.store.interruptions(since, _MAX_ROWS)
        except sqlite3.Error as error:
            raise HistoryUnavailable(f"{self.store.file}: {error}") from None
        return _recent(
            {
                "samples": history_document.sample_document(samples),
                "decisions": list(map(history_document.decision_document, decisions)),
                "interruptions": list(map(history_document.interruption_document, interruptions)),
            }
        )


@dataclass(frozen=True)
class ControllerHistory:
    """The console that a controller serves, with the rights of a token."""

    url: str
    token: str

    def recent(self) -> RecentHistory:
        """The last day. Raises ``HistoryUnavailable``."""
        try:
            return _recent(msgspec.json.decode(self._answer()))
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise HistoryUnavailable(f"{self.url}: the answer is not that of a controller's console") from None

    def _answer(self) -> bytes:
        """The answer to one request. Raises ``HistoryUnavailable``."""
        try:
            status, body = self._exchanged()
        except (OSError, HTTPException, ValueError, tls.UnusableCertificate) as error:
            reason = getattr(error, "reason", error)
            raise HistoryUnavailable(f"{self.url}: {reason or type(error).__name__}") from None
        if status != HTTPStatus.OK:
            raise HistoryUnavailable(f"{self.url}: {body.decode(errors='replace')[:200] or status}")
        return body

    def _exchanged(self) -> tuple[int, bytes]:
        """Status and body of the answer."""
        proxy, hours = proxy_for(self.url), SHOWN / timedelta(hours=1)
        opener = urllib.request.build_opener(
            _NoRedirects,
            urllib.request.HTTPSHandler(context=tls.system_context()),
            urllib.request.ProxyHandler({urlsplit(self.url).scheme: proxy} if proxy else {}),
        )
        request = urllib.request.Request(
            f"{self.url}/api/history?hours={hours:g}", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                return answer.status, bytes(answer.read())
        except HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token is shown to the address that it was given for, and to no other."""

    def redirect_request(self, *_arguments: object) -> None:
        """The redirection becomes an error."""


def history_source(file: Path | None, controller: str, token_file: Path | None) -> HistorySource:
    """The source that options name. Raises ``WrongInput``."""
    if file is not None and controller:
        raise WrongInput("--history and --controller: name one of them")
    if file is not None:
        try:
            return FileHistory(readable_history(file))
        except HistoryUnreadable as error:
            raise WrongInput(f"--history={error}") from None
    if not controller:
        return NoHistory()
    return ControllerHistory(_checked_url(controller), _token(token_file))


def _checked_url(url: str) -> str:
    """Tokens cross a network encrypted only. Raises ``WrongInput``."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise WrongInput(f"--controller={url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WrongInput(f"--controller={url}: expected an address such as http://127.0.0.1:8082")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise WrongInput(
            f"--controller={url}: the token would cross the network in clear; use https, or a forwarded port"
        )
    return url.rstrip("/")


def _token(file: Path | None) -> str:
    """Raises ``WrongInput``."""
    if file is None:
        raise WrongInput(f"--controller needs --controller-token-file: {_HOW_TO_GET_A_TOKEN}")
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInput(f"--controller-token-file={file}: {why_unreadable(error)}; {_HOW_TO_GET_A_TOKEN}") from None
    if not token.isascii() or not token.isprintable() or not token:
        raise WrongInput(f"--controller-token-file={file}: has no token; {_HOW_TO_GET_A_TOKEN}")
    return token


# -- the answer of a console ----------------------------------------------------------------------------------------------


class _Node(msgspec.Struct):
    name: str


class _Decision(msgspec.Struct):
    at: datetime
    kind: DecisionKind
    reason: str
    text: str
    outcome: str
    pods: int
    saving: float | None
    before: tuple[_Node, ...]
    after: tuple[_Node, ...]


class _Interruption(msgspec.Struct):
    at: datetime
    reason: str
    node: str
    message: str


class _Samples(msgspec.Struct):
    price: tuple[float, ...]
    pending: tuple[float, ...]


class _Answer(msgspec.Struct):
    samples: _Samples
    decisions: tuple[_Decision, ...]
    interruptions: tuple[_Interruption, ...]


def _recent(document: object) -> RecentHistory:
    """Raises ``msgspec.ValidationError``."""
    answer = msgspec.convert(document, _Answer)
    rows = (*map(_decision_row, answer.decisions), *map(_interruption_row, answer.interruptions))
    names = frozenset(_names(answer.decisions)) | {one.node for one in answer.interruptions}
    return RecentHistory(answer.samples.price, answer.samples.pending, RecordedDecisions(rows, names))


def _names(decisions: Iterable[_Decision]) -> Iterator[str]:
    for decision in decisions:
        yield from (node.name for node in (*decision.before, *decision.after))


def _decision_row(decision: _Decision) -> DecisionRow:
    before, after = (tuple(node.name for node in nodes) for nodes in (decision.before, decision.after))
    text = decision.text if decision.outcome == "succeeded" else f"{decision.text}, {decision.outcome}"
    is_disruption = decision.kind is DecisionKind.DISRUPTION
    return DecisionRow(
        decision.at,
        decision.kind,
        decision.reason,
        before or after,
        text,
        saving_per_hour=decision.saving,
        replaced_by=after if is_disruption else (),
        restarts=decision.pods if is_disruption else None,
    )


def _interruption_row(one: _Interruption) -> DecisionRow:
    return DecisionRow(one.at, DecisionKind.INTERRUPTION, one.reason, (one.node,), one.message)
