"""The supported range of Kubernetes is tested, not claimed: the tests of a real control plane pass on every release."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from controlplane import binaries
from controlplane.gobuild import CHECKOUT
from kubeadm import program

_SUITES = ("tests/contract", "tests/cluster", "tests/helm")
_SHOWN_LINES = 60


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", binaries.other_releases())
def test_the_tests_of_a_real_control_plane_pass_on(release: str) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-m", "cluster and not soak and not speed", *_SUITES]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**ours, binaries.RELEASE_VARIABLE: release},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])


def test_the_supported_range_has_no_gap() -> None:
    names = (*binaries.other_releases(), binaries.release())
    minors = sorted(int(name.split(".")[1]) for name in names)
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_each_release_has_its_kubeadm() -> None:
    """AWS-925: what nodes are given is read by kubeadm of the release that they join."""
    versions = {
        name: (program.FOLDER / "releases" / f"v{name}" / "go.mod").read_text(encoding="utf-8")
        for name in binaries.other_releases()
    }
    assert versions
    for name, text in versions.items():
        assert f"k8s.io/kubernetes v{name}." in text


def test_a_release_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv(binaries.RELEASE_VARIABLE, "1.20")
    with pytest.raises(binaries.BuildFailed, match=r"KUBERNETES_RELEASE=1.20: choose 1.34, 1.35, 1.36"):
        binaries.folder()
