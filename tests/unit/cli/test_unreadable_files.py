"""Files that are no manifests, and directories without any: what `karpenter plan` says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.manifest_builders import Plan, pod


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.yaml.gz", b"\x1f\x8b\x08\x00", "is compressed; unpack it first, for example with gunzip"),
        ("a.yaml", b"\x7fELF\x02\x00\x00", "is not a text file; expected Kubernetes objects as YAML or JSON"),
        (
            "kustomization.yaml",
            b"resources: [a.yaml]\n",
            "is a kustomization; render it: kubectl kustomize FOLDER | karpenter plan -f -",
        ),
    ],
)
def test_a_file_that_is_no_manifest_says_what_it_is(
    plan: Plan, tmp_path: Path, name: str, content: bytes, line: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result = plan("-f", tmp_path / name)
    expected = f"{tmp_path / name}: {line.replace('FOLDER', str(tmp_path))}\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", expected)


def test_directories_in_directories_are_named_where_nothing_else_is_there(plan: Plan, tmp_path: Path) -> None:
    deep = tmp_path / "top" / "deep"
    deep.mkdir(parents=True)
    (deep / "pod.yaml").write_text(yaml.safe_dump(pod()))
    result = plan("-f", tmp_path / "top")
    assert result.exit_code == 2
    assert result.stderr == f"{tmp_path / 'top'}: no manifests in it, 1 in directories below; add -R to read them\n"
