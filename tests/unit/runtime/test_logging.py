"""Log lines: their shape, what is left out, and where they go (OPS §4.6)."""

from __future__ import annotations

import asyncio
import io
import logging as standard
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from karpenter.metrics import build_info
from karpenter.model.texts import error_text
from karpenter.runtime import logging
from karpenter.runtime import logging as output
from karpenter.runtime.logging import LogOutput, LogOutputError
from karpenter.simulation.virtual_time import run_virtual


class Log:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    def text(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in self.text()]

    def line(self) -> dict[str, Any]:
        (only,) = self.lines()
        return only


@contextmanager
def logged(level: str = "info", commit: str = "", log_format: logging.LogFormat = "json") -> Iterator[Log]:
    log = Log()
    logging.configure(level, log.stream, commit, log_format)
    try:
        yield log
    finally:
        structlog.reset_defaults()


def test_a_line_is_one_json_object_with_its_keys_in_order() -> None:
    """OPS-380, OPS-385"""
    own = {"controllerKind": "Pod", "Pod": {"name": "a"}, "namespace": "", "name": "a", "reconcileID": "1"}
    context = structlog.contextvars.bound_contextvars(controller="eviction", controllerGroup="", **own)
    with logged("debug", "1a2b3c4") as log, context:
        structlog.get_logger().error("text", error="why", zone="a")
    line = log.line()
    assert list(line) == [
        "level", "time", "logger", "caller", "message", "commit",
        "controller", "controllerGroup", "controllerKind", "Pod", "namespace", "name", "reconcileID", "zone", "error",
    ]  # fmt: skip
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "controller", "text")
    assert (line["commit"], line["controller"], line["zone"], line["error"]) == ("1a2b3c4", "eviction", "a", "why")


def test_times_are_in_utc_to_the_millisecond() -> None:
    """OPS-380"""
    before = datetime.now(UTC)
    with logged() as log:
        structlog.get_logger().info("text")
    text = log.line()["time"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert abs(datetime.fromisoformat(text) - before) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", ["DEBUG", "INFO", "ERROR"]), ("info", ["INFO", "ERROR"]), ("error", ["ERROR"])],
)
def test_lines_below_the_level_are_left_out(level: str, shown: list[str]) -> None:
    with logged(level) as log:
        for method in ("debug", "info", "error"):
            getattr(structlog.get_logger(), method)("text")
    assert [line["level"] for line in log.lines()] == shown


def test_the_source_of_a_line_is_logged_at_level_debug_only() -> None:
    """OPS-380"""
    with logged("debug") as log:
        structlog.get_logger().info("text")
    assert re.fullmatch(r"runtime/test_logging\.py:\d+", log.line()["caller"])
    with logged("info") as log:
        structlog.get_logger().info("text")
    assert "caller" not in log.line()


def test_without_a_commit_there_is_no_key_for_it() -> None:
    """OPS-381"""
    with logged() as log:
        structlog.get_logger().info("text")
    assert "commit" not in log.line()


def test_objects_are_nested_and_durations_are_text() -> None:
    """OPS-383"""
    with logged() as log:
        structlog.get_logger().info("text", Pod={"name": "a", "namespace": "b"}, duration=timedelta(seconds=90.5))
    assert log.line()["Pod"] == {"name": "a", "namespace": "b"}
    assert log.line()["duration"] == "1m30.5s"


def test_what_is_no_json_is_written_as_text() -> None:
    endless: list[object] = []
    endless.append(endless)
    with logged() as log:
        structlog.get_logger().info("text", path=Path("/x"), odd={(1, 2): 3})
        structlog.get_logger().info("text", endless=endless)
    first, second = log.lines()
    assert (first["path"], first["odd"], second["endless"]) == ("/x", {"(1, 2)": 3}, "[[...]]")


# -- errors with context --------------------------------------------------------------------------------------------------


def test_joined_errors_are_all_logged() -> None:
    """OPS-384"""
    joined = ExceptionGroup("both", [ValueError("x"), ExceptionGroup("", [ValueError("y"), ValueError("z")])])
    assert error_text(joined) == "x; y; z"


def test_an_error_without_context_is_its_text_without_a_trace() -> None:
    """OPS-382"""
    with logged() as log:
        try:
            raise ValueError("why")
        except ValueError as error:
            structlog.get_logger().error("failed", error=error)
    assert log.line()["error"] == "why"
    assert "Traceback" not in log.stream.getvalue()


# -- thinning -------------------------------------------------------------------------------------------------------------


def flood(count: int, text: str = "text") -> None:
    for number in range(1, count + 1):
        structlog.get_logger().info(text, number=number)


def in_virtual_time(scenario: Any) -> None:
    run_virtual(lambda clock: scenario(), datetime(2026, 1, 1, tzinfo=UTC))


def test_a_text_that_floods_the_log_is_thinned_to_every_hundredth() -> None:
    """OPS-382"""

    async def scenario() -> None:
        flood(1000)

    with logged() as log:
        in_virtual_time(scenario)
    numbers = [line["number"] for line in log.lines()]
    assert numbers == [*range(1, 101), *range(200, 1001, 100)]


def test_a_hundred_a_second_are_written_in_full_for_ever() -> None:
    async def scenario() -> None:
        for _ in range(5):
            flood(100)
            await asyncio.sleep(1)

    with logged() as log:
        in_virtual_time(scenario)
    assert len(log.lines()) == 500


def test_texts_and_levels_are_thinned_each_for_itself() -> None:
    async def scenario() -> None:
        flood(150, "one")
        flood(100, "two")
        for _ in range(100):
            structlog.get_logger().error("one")

    with logged() as log:
        in_virtual_time(scenario)
    assert len(log.lines()) == 300


def test_thinning_remembers_only_what_is_recent() -> None:
    thinning = logging.LogSampling()

    async def scenario() -> None:
        for number in range(5000):
            thinning(None, "info", {"level": "info", "event": str(number)})
            await asyncio.sleep(0.01)
        assert len(thinning._counts) <= 1001

    in_virtual_time(scenario)


# -- lines of libraries ---------------------------------------------------------------------------------------------------


def test_what_libraries_complain_of_becomes_lines_of_ours() -> None:
    root = standard.getLogger()
    before = root.handlers[:], root.level
    with logged() as log:
        logging.capture_library_logs()
        try:
            try:
                raise ValueError("why")
            except ValueError:
                standard.getLogger("asyncio").exception("Task exception was never retrieved")
            standard.getLogger("httpx").info("request done")
            standard.getLogger("other").warning("careful, %s", "you")
        finally:
            standard.captureWarnings(False)
            root.handlers[:], level = before
            root.setLevel(level)
    first, second = log.lines()
    assert (first["level"], first["source"]) == ("ERROR", "asyncio")
    assert (first["message"], first["error"]) == ("Task exception was never retrieved", "ValueError('why')")
    assert (second["level"], second["message"]) == ("INFO", "careful, you")


# -- where lines go -------------------------------------------------------------------------------------------------------


class Full(io.StringIO):
    """A disk that is full, until it is not."""

    is_full = True

    def write(self, text: str, /) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_go_to_every_stream() -> None:
    """OPS-324"""
    one, two = io.StringIO(), io.StringIO()
    LogOutput([one, two], []).write("line\n")
    assert one.getvalue() == two.getvalue() == "line\n"


def test_a_log_stream_that_fails_is_reported_once_and_the_others_go_on() -> None:
    """OPS-325"""
    full, well, errors = Full(), io.StringIO(), io.StringIO()
    out = LogOutput([full, well], [errors])
    out.write("one\n")
    out.write("two\n")
    (complaint,) = errors.getvalue().splitlines()
    assert complaint.endswith("a log line could not be written: [Errno 28] No space left on device")
    assert well.getvalue() == "one\ntwo\n"
    full.is_full = False
    out.write("three\n")
    full.is_full = True
    out.write("four\n")
    assert full.getvalue() == "three\n"
    assert len(errors.getvalue().splitlines()) == 2


def test_where_even_complaints_cannot_be_written_the_process_goes_on() -> None:
    LogOutput([Full()], [Full()]).write("line\n")


def test_files_grow(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    output.check_log_path(str(path))
    stream = output.open_log_stream(str(path))
    LogOutput([stream], []).write("after\n")
    assert path.read_text() == "before\nafter\n"
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/", "/nowhere/log"])
def test_a_path_that_cannot_be_written_is_refused_by_name(path: str) -> None:
    for refuse in (output.check_log_path, output.open_log_stream):
        with pytest.raises(LogOutputError, match=f"^{path} "):
            refuse(path)


def test_looking_at_a_path_creates_nothing(tmp_path: Path) -> None:
    output.check_log_path(str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []


# -- the build ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noted", "commit"),
    [
        ('{"url": "x", "vcs_info": {"vcs": "git", "commit_id": "1a2b3c4d5e6f"}}', "1a2b3c4"),
        ('{"url": "x", "dir_info": {"editable": true}}', ""),
        ("", ""),
        ("nonsense", ""),
        ("[]", ""),
    ],
)
def test_the_commit_is_what_the_installer_noted(noted: str, commit: str) -> None:
    """OPS-380, OPS-381"""
    assert build_info.commit_of_direct_url(noted) == commit
    assert re.fullmatch(r"[0-9a-f]{0,7}", build_info.vcs_revision())


def test_in_a_terminal_a_line_is_text_with_the_same_keys() -> None:
    """OPS-380: time, level and message first; values with blanks are quoted, objects are JSON."""
    with logged("info", "1a2b3c4", "console") as log:
        structlog.get_logger().error("launched nodeclaim", NodeClaim={"name": "a"}, zone="us-east-1a", error="no room")
    (line,) = log.text()
    time, _, rest = line.partition(" ")
    assert re.fullmatch(r"[0-9T:.-]+Z", time)
    assert rest == ('ERROR launched nodeclaim commit=1a2b3c4 NodeClaim={"name":"a"} zone=us-east-1a error="no room"')


@pytest.mark.parametrize(
    ("asked", "paths", "is_terminal", "expected"),
    [
        ("auto", ("stdout",), True, "console"),
        ("auto", ("stdout",), False, "json"),
        ("auto", ("stdout", "/var/log/karpenter"), True, "json"),
        ("json", ("stdout",), True, "json"),
        ("console", ("/var/log/karpenter",), False, "console"),
    ],
)
def test_the_form_of_lines_depends_on_where_they_go_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, asked: str, paths: tuple[str, ...], is_terminal: bool, expected: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert logging.format_for(asked, paths) == expected
