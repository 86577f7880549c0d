"""Karpenter's end-to-end suites as test binaries, and what they need from its module.

The suites are built from the Go module `sigs.k8s.io/karpenter`, at the release that ``go.mod`` beside this file names; nothing of
it is copied into the repository. Three lines differ. How long the suites wait by default for a condition (15 minutes) is a
parameter of the build. The types of the device driver's own API group are registered with the options of their requests,
without which neither the driver nor its suite can read or write a single object. And metrics of the controller are read on a port
of this machine, as there is no kubelet that forwards one of a pod: the suite would wait for that for ever. The compiler allows no
overlay of downloaded modules, so the module's source is unpacked once more into the cache, with those lines changed, and the
build is pointed there.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from controlplane.gobuild import BuildFailed, GoModule, cache_folder

_DEPENDENCY = "sigs.k8s.io/karpenter"
MODULE = GoModule("Karpenter's end-to-end suites", Path(__file__).parent, (1, 26, 9))

#: Where the suites find the metrics of the controller, on this machine and on the address of its pod.
METRICS_PORT = 8080
#: Of the copy that the driver is built from: it waits for nothing, so any will do.
_DRIVER_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class _Change:
    """A line of the module that differs: what ``pattern`` matches in ``file`` becomes ``text``."""

    file: str
    pattern: str
    text: str


def _changes(timeout_seconds: int) -> tuple[_Change, ...]:
    timeout, types = r"gomega\.SetDefaultEventuallyTimeout\([^)]*\)", r"s\.AddKnownTypes\(GroupVersion, [^)]*\)"
    return (
        _Change(
            "test/pkg/environment/common/environment.go",
            timeout,
            f"gomega.SetDefaultEventuallyTimeout({timeout_seconds} * time.Second)",
        ),
        _Change(
            "dra-kwok-driver/pkg/apis/v1alpha1/draconfig_types.go",
            types,
            r"\g<0>; metav1.AddToGroupVersion(s, GroupVersion)",
        ),
        _Change(
            "test/pkg/environment/common/expectations.go",
            r"env\.ExpectPodPortForwarded\(ctx, (env\.ExpectActiveKarpenterPod\(\)), 8080, localPort\)",
            rf"_, _, localPort = ctx, \1, {METRICS_PORT}",
        ),
    )


#: Specs whose only assertion is an ``Eventually`` without ``Should``, which checks nothing (release 1.15.0).
VACUOUS = frozenset(
    {
        "should have NodePool hash",
        "should update the nodepool-hash annotation on the nodepool and nodeclaim when the nodepool's "
        "nodepool-hash-version annotation does not match the controller hash version",
    }
)


class Suite(StrEnum):
    """A suite of the module."""

    REGRESSION = "regression"
    DISRUPTION = "disruption"
    DRA = "dra"
    PERFORMANCE = "performance"


def release() -> str:
    """The release of Karpenter whose suites are built, such as ``v1.15.0``."""
    match = re.search(rf"{_DEPENDENCY} (v\S+)", (MODULE.folder / "go.mod").read_text())
    if match is None:
        raise BuildFailed(f"{MODULE.folder / 'go.mod'} names no release of {_DEPENDENCY}")
    return match.group(1)


def binary(suite: Suite, timeout_seconds: int) -> Path:
    """The suite's test binary, built first where necessary (minutes). Raises ``BuildFailed``."""
    module_file = _patched_source(timeout_seconds)
    flags = ("-c", "-trimpath", "-ldflags=-s -w", f"-modfile={module_file}")
    return MODULE.binaries({suite.value: ("test", *flags, f"{_DEPENDENCY}/test/suites/{suite}")}) / suite.value


def device_driver() -> Path:
    """The stand-in for a device driver that the suite ``dra`` needs beside the controller: it publishes ResourceSlices."""
    name = "dra-kwok-driver"
    flags = ("-trimpath", "-ldflags=-s -w", f"-modfile={_patched_source(_DRIVER_TIMEOUT_SECONDS)}")
    return MODULE.binaries({name: ("build", *flags, f"{_DEPENDENCY}/{name}")}) / name


def device_driver_definitions() -> list[dict[str, object]]:
    """The CRDs of what configures that driver."""
    folder = MODULE.dependency(_DEPENDENCY) / "dra-kwok-driver" / "pkg" / "apis" / "crds"
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]


def folder(suite: Suite) -> Path:
    """Where the sources of a suite lie."""
    return MODULE.dependency(_DEPENDENCY) / "test" / "suites" / suite.value


def instance_types() -> list[dict[str, object]]:
    """The types of Karpenter's simulated provider, with the overhead it adds to each in its code (100m CPU, 10Mi memory)."""
    source = MODULE.dependency(_DEPENDENCY) / "kwok" / "cloudprovider" / "instance_types.json"
    overhead = {"cpu": "100m", "memory": "10Mi"}
    return [{**instance_type, "overhead": overhead} for instance_type in json.loads(source.read_text())]


def _patched_source(timeout_seconds: int) -> Path:
    """A ``go.mod`` that takes the dependency from a copy with the changed lines. Its folder is named after the content."""
    source = MODULE.dependency(_DEPENDENCY)
    texts = {change.file: _changed(source, change) for change in _changes(timeout_seconds)}
    module = (MODULE.folder / "go.mod").read_text()
    content = "".join((module, *texts.values()))
    folder = cache_folder() / f"source-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="source-") as scratch:
            copy = Path(scratch) / "karpenter"
            shutil.copytree(source, copy, copy_function=shutil.copyfile)
            for entry in (copy, *copy.rglob("*")):
                entry.chmod(0o755)
            for file, text in texts.items():
                (copy / file).write_text(text)
            copy.rename(folder)
    module_file = folder / "conformance.mod"
    module_file.write_text(f"{module}\nreplace {_DEPENDENCY} => {folder}\n")
    shutil.copyfile(MODULE.folder / "go.sum", module_file.with_suffix(".sum"))
    return module_file


def _changed(source: Path, change: _Change) -> str:
    """The text of a file with its change. Raises ``BuildFailed`` where the line is not there just once."""
    text, count = re.subn(change.pattern, change.text, (source / change.file).read_text())
    if count != 1:
        raise BuildFailed(
            f"{change.file} has {count} lines like {change.pattern!r} instead of one; adapt {Path(__file__).name}"
        )
    return text
