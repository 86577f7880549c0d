"""Every Helm command in the documents renders, with the values it shows."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import deployed
from helm.charts import ROOT, helm, the
from support import yaml_text

pytestmark = pytest.mark.usefixtures("helm_program")

_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_VARIABLES = {
    "CLUSTER_NAME": "shop",
    "REGISTRY": "registry.example.com",
    "ACCOUNT": "123456789012",
    "AWS_REGION": "eu-west-1",
}
#: Flags of an installation that `helm template` does not have.
_INSTALLING = frozenset({"--install", "--wait", "--reset-then-reuse-values", "--reuse-values"})


def _commands() -> Iterator[tuple[Path, tuple[str, ...]]]:
    for page in _PAGES:
        for language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
            if language == "sh":
                for line in text.replace("\\\n", " ").splitlines():
                    words = shlex.split(_with_variables(line), comments=True)
                    if words[:1] == ["helm"]:
                        yield page, tuple(words[1:])


def _with_variables(line: str) -> str:
    return re.sub(r"\$(\w+)", lambda match: _VARIABLES.get(match[1], match[0]), line)


COMMANDS = [
    (page, words) for page, words in dict.fromkeys(_commands()) if words[0] in ("install", "upgrade", "template")
]


def test_the_documents_show_how_to_install_with_helm() -> None:
    assert {page.name for page, _ in COMMANDS} >= {"install.md", "aws.md", "kind.md"}


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page.name}: {' '.join(words)}" for page, words in COMMANDS]
)
def test_a_helm_command_in_a_document_renders(page: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    for name, text in _values_files(page):
        (tmp_path / name).write_text(text, encoding="utf-8")
    flags = [str(tmp_path / word) if word == "values.yaml" else word for word in words[1:] if word not in _INSTALLING]
    if "upgrade" in words and "--install" not in words and "charts/karpenter" in words:
        flags += ["--set", "settings.clusterName=shop"]  # an upgrade keeps the values of the installation
    objects = [one for one in yaml_text.documents(helm("template", *flags)) if one]
    if "charts/karpenter" in words:
        assert deployed.environment(the(objects, "Deployment"))["KARPENTER_PROVIDER"] in ("aws", "simulated")
    else:
        assert {one["kind"] for one in objects} == {"CustomResourceDefinition"}


def _values_files(page: Path) -> Iterator[tuple[str, str]]:
    """Files a page shows, by the name in their first line."""
    for language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        match = re.match(r"# (\S+\.yaml)\n", text)
        if language == "yaml" and match:
            yield match[1], text


@pytest.mark.parametrize("name", ["karpenter", "karpenter-crd"])
def test_helm_shows_the_values_of_a_chart(name: str) -> None:
    assert yaml_text.document(helm("show", "values", f"charts/{name}")) == yaml_text.document(
        (ROOT / "charts" / name / "values.yaml").read_text(encoding="utf-8")
    )
    assert os.linesep in helm("show", "readme", f"charts/{name}")
