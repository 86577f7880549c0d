"""Structured logs: one JSON object per line, with the keys and texts users of Karpenter search for (OPS-380 ff.); in a terminal
the same as text.

A line passes through a list of small steps. Its fields come from the caller and from the context variables of the reconcile it
belongs to (OPS-385); this module formats it. Of a message that floods the log, every hundredth line is kept (OPS-382).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import MutableMapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import structlog
from structlog.processors import CallsiteParameter, CallsiteParameterAdder
from structlog.typing import Processor

from karpenter.model import durations
from karpenter.model.texts import error_text

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR}
#: How many lines of one text are written within a second before they are thinned, and which of the others stay (OPS-382).
_SAMPLING_INITIAL = 100
_SAMPLING_THEREAFTER = 100
#: Texts remembered for thinning before old ones are forgotten.
_MAX_SAMPLED_MESSAGES = 1000

#: The keys of a pass, in order (OPS-385).
_RECONCILE_KEYS = ("controller", "controllerGroup", "controllerKind", "namespace", "name", "reconcileID")

LogEvent = MutableMapping[str, object]
#: Text values that contain one of these are quoted in a terminal.
_QUOTED_CHARACTERS = frozenset(' "=\t\n')


class LogStream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object:
        """Take a text."""

    def flush(self) -> None:
        """Pass on what was taken."""


#: Forms of a line.
LogFormat = Literal["json", "console"]


def configure(level: str, stream: LogStream | None = None, commit: str = "", log_format: LogFormat = "json") -> None:
    """Send all log lines to ``stream`` (standard output by default), from ``level`` (debug, info, error) on.

    ``commit`` is the build's, empty if unknown. Only level debug and below show the place of the call.
    """
    where: list[Processor] = []
    if level == "debug":
        where.append(CallsiteParameterAdder([CallsiteParameter.PATHNAME, CallsiteParameter.LINENO]))
    structlog.configure(
        processors=[
            _with_reconcile_context,
            structlog.processors.add_log_level,
            LogSampling(),
            *where,
            _LineFormat(commit),
            _as_json if log_format == "json" else _as_text,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream or sys.stdout),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def _with_reconcile_context(_logger: object, _method: str, event: LogEvent) -> LogEvent:
    """What pass the line belongs to, before what the line says."""
    contextvars = structlog.contextvars.get_contextvars()
    return {**{name: contextvars[name] for name in sorted(contextvars, key=_context_key_order)}, **event}


def _context_key_order(name: str) -> tuple[float, str]:
    """Context variables have no order of their own; the object reconciled, under its kind, comes before its name."""
    return (_RECONCILE_KEYS.index(name) if name in _RECONCILE_KEYS else _RECONCILE_KEYS.index("namespace") - 0.5, name)


class LogSampling:
    """Drops most lines of a text that comes more than a hundred times within a second, by the event loop's clock if there is one.

    Which objects a line is about does not matter, only its level and its message.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[object, object], tuple[float, int]] = {}

    def __call__(self, _logger: object, _method: str, event: LogEvent) -> LogEvent:
        """Pass the line on, or raise ``structlog.DropEvent``."""
        now = _now()
        key = (event["level"], event["event"])
        began, count = self._counts.get(key, (now, 0))
        if not now - 1.0 < began <= now:
            began, count = now, 0
        self._counts[key] = began, count + 1
        if len(self._counts) > _MAX_SAMPLED_MESSAGES:
            self._counts = {message: window for message, window in self._counts.items() if window[0] > now - 1.0}
        if count >= _SAMPLING_INITIAL and (count + 1 - _SAMPLING_INITIAL) % _SAMPLING_THEREAFTER:
            raise structlog.DropEvent
        return event


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class _LineFormat:
    """Keys in the order of OPS-380: level, time, logger, caller, message, commit, context, error."""

    def __init__(self, commit: str) -> None:
        self._commit = {"commit": commit} if commit else {}

    def __call__(self, _logger: object, _method: str, event: LogEvent) -> LogEvent:
        error = event.pop("error", None)
        shaped: LogEvent = {"level": str(event.pop("level")).upper(), "time": _timestamp(), "logger": "controller"}
        if "pathname" in event:
            shaped["caller"] = _caller(Path(str(event.pop("pathname"))), event.pop("lineno"))
        shaped["message"] = event.pop("event")
        shaped.update(self._commit)
        shaped.update((key, _loggable(value)) for key, value in event.items())
        if isinstance(error, BaseException):
            error = error_text(error)
        if error is not None:
            shaped["error"] = error
        return shaped


def _timestamp() -> str:
    now = datetime.now(UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"


def _caller(file: Path, line: object) -> str:
    return f"{file.parent.name}/{file.name}:{line}"


def _loggable(value: object) -> object:
    return durations.duration_text(value) if isinstance(value, timedelta) else value


def _as_json(_logger: object, _method: str, event: LogEvent) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        # Something in it is no JSON; the line is worth more than its types.
        return msgspec.json.encode({str(key): str(value) for key, value in event.items()}).decode()


def _as_text(logger: object, method: str, event: LogEvent) -> str:
    """Time, level and message, then the other keys with their values as JSON where they are no plain words."""
    head = f"{event.pop('time')} {event.pop('level'):<5} {event.pop('message')}"
    event.pop("logger")
    return " ".join([head, *(f"{key}={_value_text(logger, method, value)}" for key, value in event.items())])


def _value_text(logger: object, method: str, value: object) -> str:
    if isinstance(value, str) and value and not set(value) & _QUOTED_CHARACTERS:
        return value
    return _as_json(logger, method, {"": value}).removeprefix('{"":').removesuffix("}")


def format_for(log_format: str, paths: Sequence[str]) -> LogFormat:
    """The form that a setting (auto, json, console) means for these outputs."""
    if log_format == "auto":
        streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        return "console" if all(path in streams and streams[path].isatty() for path in paths) else "json"
    return "console" if log_format == "console" else "json"


def capture_library_logs() -> None:
    """Have what libraries (asyncio among them) log as warnings and errors become lines of ours."""
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[_LibraryLogHandler()], level=logging.WARNING, force=True)


class _LibraryLogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        about: dict[str, object] = {"source": record.name}
        if fault is not None:
            about["error"] = repr(fault)
        log = structlog.get_logger()
        (log.error if record.levelno >= logging.ERROR else log.info)(record.getMessage(), **about)


_STANDARD_STREAMS = ("stdout", "stderr")


class LogOutputError(Exception):
    """Nothing can be written there; the message says where and why."""


def check_log_path(path: str) -> None:
    """Raise ``LogOutputError`` where a path cannot be written to. Nothing is created."""
    if path in _STANDARD_STREAMS:
        return
    file = Path(path)
    if file.is_dir():
        raise LogOutputError(f"{path} is a folder")
    if not file.parent.is_dir():
        raise LogOutputError(f"{path} cannot be written: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise LogOutputError(f"{path} cannot be written: this user may not")


def open_log_stream(path: str) -> LogStream:
    """The stream of a path (``stdout``, ``stderr`` or a file, which grows). Raises ``LogOutputError``."""
    match path:
        case "stdout":
            return sys.stdout
        case "stderr":
            return sys.stderr
    try:
        return Path(path).open("a", encoding="utf-8")
    except OSError as error:
        raise LogOutputError(f"{path} cannot be written: {error.strerror}") from error


class LogOutput:
    """Writes to several streams. A failure is reported to ``errors`` once, until the stream works again."""

    def __init__(self, streams: Sequence[LogStream], errors: Sequence[LogStream]) -> None:
        self._streams = streams
        self._errors = errors
        self._failing: set[int] = set()

    def write(self, text: str, /) -> int:
        """Write to every stream that takes it."""
        for number, stream in enumerate(self._streams):
            try:
                stream.write(text)
                stream.flush()
                self._failing.discard(number)
            except (OSError, ValueError) as error:
                self._report_failure(number, error)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def _report_failure(self, number: int, error: Exception) -> None:
        if number in self._failing:
            return
        self._failing.add(number)
        for stream in self._errors:
            try:
                stream.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} a log line could not be written: {error}\n")
                stream.flush()
            except (OSError, ValueError):
                continue
