"""The double in a process of its own, so that what it costs is not counted as the product's."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.harness import die_with_parent
from support.aws.double import REGION

_ANSWER_SECONDS = 60
_TESTS = Path(__file__).resolve().parents[2]


class Elsewhere:
    """A double at a URL. What ``Control`` has is there by name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.region_name = REGION

    def do(self, method: str, /, **arguments: object) -> Any:
        """The result of that method of ``Control``. Raises ``urllib.error.HTTPError`` for one that is not there."""
        request = urllib.request.Request(f"{self.url}/_double/{method}", json.dumps(arguments).encode())
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            return json.load(answer)["result"]

    def machines(self) -> list[dict[str, Any]]:
        """All machines."""
        result: list[dict[str, Any]] = self.do("machines")
        return result

    def calls(self, operation: str = "") -> list[dict[str, Any]]:
        """The record of calls."""
        result: list[dict[str, Any]] = self.do("calls", operation=operation)
        return result


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """Start one, and end it."""
    command = (sys.executable, "-m", "support.aws.double", "--port", "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=_TESTS, preexec_fn=die_with_parent()
    ) as process:
        assert process.stdout is not None
        try:
            yield Elsewhere(process.stdout.readline().strip())
        finally:
            process.kill()
