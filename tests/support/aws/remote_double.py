"""The double in another process, so that its CPU time and memory do not count as the product's."""

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


class RemoteDouble:
    """A double at a URL. ``do`` calls the methods of ``Control`` by name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.region_name = REGION

    def do(self, method: str, /, **arguments: object) -> Any:
        """The result of a method of ``Control``. Raises ``urllib.error.HTTPError`` if there is none."""
        request = urllib.request.Request(f"{self.url}/_double/{method}", json.dumps(arguments).encode())
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            return json.load(answer)["result"]

    def instances(self) -> list[dict[str, Any]]:
        """All instances."""
        result: list[dict[str, Any]] = self.do("instances")
        return result

    def calls(self, operation: str = "") -> list[dict[str, Any]]:
        """Recorded calls."""
        result: list[dict[str, Any]] = self.do("calls", operation=operation)
        return result


@contextmanager
def remote_double() -> Iterator[RemoteDouble]:
    """Start a double in another process, and stop it at the end."""
    command = (sys.executable, "-m", "support.aws.double", "--port", "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=_TESTS, preexec_fn=die_with_parent()
    ) as process:
        assert process.stdout is not None
        try:
            yield RemoteDouble(process.stdout.readline().strip())
        finally:
            process.kill()
