"""The control plane's binaries, built from the Go module beside this file (``gobuild``).

It is one release of Kubernetes. ``KUBERNETES_RELEASE`` names another one, of a module in ``releases/``; ``make soak`` runs the
cluster tests on each of them. ``KUBEBUILDER_ASSETS`` names ready-made binaries instead. Run as a script it builds (where needed)
and prints the folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from controlplane.gobuild import BuildFailed, GoModule

__all__ = [
    "API_SERVER",
    "CONTROLLER_MANAGER",
    "ETCD",
    "RELEASE_VARIABLE",
    "SCHEDULER",
    "BuildFailed",
    "folder",
    "is_ready",
    "minor_release",
    "other_releases",
    "release",
]

#: Names a release such as ``1.34``; empty means that of ``go.mod`` beside this file.
RELEASE_VARIABLE = "KUBERNETES_RELEASE"
_FOLDER = Path(__file__).parent
_RELEASES = _FOLDER / "releases"

ETCD = "etcd"
API_SERVER = "kube-apiserver"
SCHEDULER = "kube-scheduler"
CONTROLLER_MANAGER = "kube-controller-manager"

_PACKAGES = {
    ETCD: "go.etcd.io/etcd/server/v3",
    API_SERVER: "k8s.io/kubernetes/cmd/kube-apiserver",
    SCHEDULER: "k8s.io/kubernetes/cmd/kube-scheduler",
    CONTROLLER_MANAGER: "k8s.io/kubernetes/cmd/kube-controller-manager",
}


def folder() -> Path:
    """The folder with the binaries, built first where that is necessary (minutes). Raises ``BuildFailed``."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        return _checked(Path(assets))
    module = _module()
    return module.binaries(_commands(module))


def is_ready() -> bool:
    """Whether ``folder`` will answer at once."""
    module = _module()
    return bool(os.environ.get("KUBEBUILDER_ASSETS")) or module.is_built(_commands(module))


def other_releases() -> tuple[str, ...]:
    """The other releases that the soak tests, oldest first."""
    return tuple(
        sorted((path.name.removeprefix("v") for path in _RELEASES.iterdir()), key=lambda name: name.split("."))
    )


def release() -> str:
    """The release that is tested on, such as ``v1.37.2``."""
    return _release(_module())


def minor_release() -> int:
    """The middle number of ``release()``: 37 of ``v1.37.2``."""
    return int(release().split(".")[1])


def _module() -> GoModule:
    name = os.environ.get(RELEASE_VARIABLE, "")
    if name and name not in other_releases():
        raise BuildFailed(
            f"{RELEASE_VARIABLE}={name}: choose {', '.join(other_releases())}, or unset it for the usual one"
        )
    folder = _RELEASES / f"v{name}" if name else _FOLDER
    return GoModule("the test control plane (or set KUBEBUILDER_ASSETS)", folder, (1, 26))


def _checked(assets: Path) -> Path:
    for name in (ETCD, API_SERVER):
        if not (assets / name).is_file():
            raise BuildFailed(f"KUBEBUILDER_ASSETS={assets} has no {name}; point it elsewhere or unset it to build one")
    return assets


def _commands(module: GoModule) -> dict[str, tuple[str, ...]]:
    flags = ("-trimpath", f"-ldflags=-s -w {_version_stamp(module)}")
    return {name: ("build", *flags, package) for name, package in _PACKAGES.items()}


def _version_stamp(module: GoModule) -> str:
    """Linker flags that make the binaries tell their release, which a module build alone does not."""
    version = _release(module)
    major, minor, _ = version.removeprefix("v").split(".")
    values = zip(("gitVersion", "gitMajor", "gitMinor"), (version, major, minor), strict=True)
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values)


def _release(module: GoModule) -> str:
    match = re.search(r"k8s\.io/kubernetes (v\d+\.\d+\.\d+)", (module.folder / "go.mod").read_text())
    if match is None:
        raise BuildFailed(f"{module.folder / 'go.mod'} names no release of k8s.io/kubernetes")
    return match.group(1)


if __name__ == "__main__":
    print(folder())
