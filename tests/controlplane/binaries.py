"""The control plane's binaries, built from the Go module beside this file (``gobuild``).

``KUBEBUILDER_ASSETS`` names ready-made binaries instead. Run as a script it builds (where needed) and prints the folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from controlplane.gobuild import BuildFailed, GoModule

__all__ = ["API_SERVER", "CONTROLLER_MANAGER", "ETCD", "SCHEDULER", "BuildFailed", "folder", "is_ready"]

MODULE = GoModule("the test control plane (or set KUBEBUILDER_ASSETS)", Path(__file__).parent, (1, 25))

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
    return _checked(Path(assets)) if assets else MODULE.binaries(_commands())


def is_ready() -> bool:
    """Whether ``folder`` will answer at once."""
    return bool(os.environ.get("KUBEBUILDER_ASSETS")) or MODULE.is_built(_commands())


def _checked(assets: Path) -> Path:
    for name in (ETCD, API_SERVER):
        if not (assets / name).is_file():
            raise BuildFailed(f"KUBEBUILDER_ASSETS={assets} has no {name}; point it elsewhere or unset it to build one")
    return assets


def _commands() -> dict[str, tuple[str, ...]]:
    flags = ("-trimpath", f"-ldflags=-s -w {_version_stamp()}")
    return {name: ("build", *flags, package) for name, package in _PACKAGES.items()}


def _version_stamp() -> str:
    """Linker flags that make the binaries tell their release, which a module build alone does not."""
    match = re.search(r"k8s.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (MODULE.folder / "go.mod").read_text())
    if match is None:
        raise BuildFailed(f"{MODULE.folder / 'go.mod'} names no release of k8s.io/kubernetes")
    values = zip(("gitVersion", "gitMajor", "gitMinor"), match.groups(), strict=True)
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values)


if __name__ == "__main__":
    print(folder())
