"""Every line with kubectl in a shell block of a document, done in the order of its page on a real control plane."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import cleanup
from controlplane.harness import ControlPlane, Json
from controlplane.objects import CLASS_REFERENCE, items, made
from karpenter.api import crds
from support import shell_commands, yaml_text
from support.examples import series
from support.installed_program import KARPENTER
from support.kubectl_lines import ROOT, Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PAGES = [
    page for page in shell_commands.pages() if any("kubectl " in line for line in shell_commands.shell_lines(page))
]
#: Names that a reader replaces.
REPLACED = {"NAME": "somebody"}
#: Pages about an installation with ``settings.console=true``.
WITH_CONSOLE = {"console.md", "top.md", "savings.md", "clusters.md"}
_LOOP = re.compile(r"for (\w+) in (.*); do")
_INNER = re.compile(r"\$\((kubectl [^()|]*)(?:\| grep -E '([^']*)')?\)")
_NAMED_FILE = re.compile(r"^# (\S+\.yaml)\n")
_CONDITION: Json = {
    "type": "Ready",
    "status": "True",
    "reason": "Ready",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
OLDER = """
apiVersion: karpenter.sh/v1beta1
kind: NodePool
metadata: {name: older}
spec:
  template:
    spec:
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]
      nodeClassRef: {name: older}
---
apiVersion: karpenter.k8s.aws/v1beta1
kind: EC2NodeClass
metadata: {name: older}
spec:
  amiFamily: AL2023
  role: KarpenterNodeRole-main
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: main}}]
  securityGroupSelectorTerms: [{tags: {karpenter.sh/discovery: main}}]
"""


def test_the_pages_with_kubectl_are_found() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert names >= {"docs/install.md", "docs/aws.md", "docs/getting-started/kind.md", "docs/operations/removal.md"}
    assert len(names) >= 12


#: The pages with the most lines; the soak does all.
LONGEST = sorted(PAGES, key=lambda page: (-page.read_text(encoding="utf-8").count("kubectl "), page))[:8]


@pytest.mark.parametrize("page", series(PAGES, *LONGEST), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_line_with_kubectl_works_in_the_order_of_its_page(
    plane: ControlPlane, page: Path, tmp_path: Path
) -> None:
    plane.apply(*crds.custom_resource_definitions())
    cleanup.empty(plane)
    plane.apply(*prerequisites(page))
    kubectl = Kubectl(plane, files_of(page, tmp_path))
    done = 0
    for line in unrolled(page, kubectl):
        *before, last = re.split(r"\s\|\s", re.sub(r"\s>\s?\S+", "", line))
        if last.startswith("kubectl "):
            stdin = (
                subprocess.run([KARPENTER, *before[0].split()[1:]], capture_output=True, text=True, check=True).stdout
                if before
                else ""
            )
            if "--for=condition=Ready" in last:
                be_ready(plane)
            kubectl.run(last, stdin)
            done += 1
        elif before and before[0].startswith("kubectl "):
            assert kubectl.run(before[0])
            done += 1
    assert done
    if page.name == "removal.md":
        plane.until(lambda: not items(plane, "/apis/karpenter.sh/v1/nodeclaims"), "the NodeClaims to go")
        (node,) = items(plane, "/api/v1/nodes")
        assert "finalizers" not in node["metadata"]
    plane.apply(*crds.custom_resource_definitions())


def unrolled(page: Path, kubectl: Kubectl) -> Iterator[str]:
    """The lines of a page with kubectl; those in a loop once for each object that the loop is about."""
    lines = iter([*shell_commands.shell_lines(page)])
    for line in lines:
        loop = _LOOP.fullmatch(line)
        if loop is None:
            yield replaced(line)
            continue
        body = list(iter(lambda: next(lines), "done"))
        names = [name for inner in _INNER.finditer(loop[2]) for name in named(kubectl, inner)]
        assert names
        for name in names:
            yield from (each.replace(f"${loop[1]}", name) for each in body)


def named(kubectl: Kubectl, inner: re.Match[str]) -> list[str]:
    """The objects that a substitution names, after its grep."""
    return [name for name in kubectl.run(inner[1].strip()).splitlines() if re.search(inner[2] or "", name)]


def replaced(line: str) -> str:
    for name, meant in REPLACED.items():
        line = re.sub(rf"\b{name}\b", meant, line)
    return line


def prerequisites(page: Path) -> Iterator[Json]:
    """What a page begins with: an installation; before a removal also a node of ours without a controller."""
    for name in ("karpenter", "team-a"):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "somebody", "namespace": "default"}}
    text = (ROOT / "deploy" / "simulated" / "karpenter.yaml").read_text(encoding="utf-8")
    (deployment,) = (one for one in yaml_text.documents(text) if one and one["kind"] == "Deployment")
    deployment["spec"]["replicas"] = 0  # no kubelet would start them
    if page.name in WITH_CONSOLE:
        deployment["spec"]["template"]["spec"]["containers"][0]["ports"].append({"containerPort": 8082})
    for namespace in ("kube-system", "karpenter"):
        yield {**deployment, "metadata": {**deployment["metadata"], "namespace": namespace}}
    if page.name != "removal.md":
        return
    spec: Json = {"nodeClassRef": CLASS_REFERENCE, "requirements": []}
    yield made("NodeClaim", "karpenter.sh/v1", "left", spec, finalizers=["karpenter.sh/termination"])
    labelled: Json = {"labels": {"karpenter.sh/nodepool": "left"}, "finalizers": ["karpenter.sh/termination"]}
    yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "left", **labelled}}


def files_of(page: Path, folder: Path) -> dict[str, str]:
    """Files that a page shows by name, and those that its commands have written before."""
    blocks = [text for language, text in shell_commands.fenced_blocks(page) if language == "yaml"]
    files = {found[1]: text for text in blocks if (found := _NAMED_FILE.match(text))}
    classes = [text for text in blocks if "kind: EC2NodeClass" in text]
    if classes:
        files.setdefault("class.yaml", classes[0])
    (folder / "older.yaml").write_text(OLDER)
    command = [KARPENTER, "convert", "-f", str(folder / "older.yaml")]
    files["converted.yaml"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return files


def be_ready(plane: ControlPlane) -> None:
    """What the controller says of every class and pool."""
    for path in ("/apis/karpenter.k8s.aws/v1/ec2nodeclasses", "/apis/karpenter.sh/v1/nodepools"):
        for each in items(plane, path):
            status: Json = {"status": {"conditions": [_CONDITION]}}
            name = each["metadata"]["name"]
            plane.request("PATCH", f"{path}/{name}/status", status, "application/merge-patch+json")
