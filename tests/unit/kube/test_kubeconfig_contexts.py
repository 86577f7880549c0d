"""A context that a kubeconfig does not have is refused with those that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from karpenter.kube.kubeconfig import InvalidKubeconfig, read_files, select_context


@pytest.mark.parametrize(
    ("contexts", "said"),
    [
        (
            "[{name: dev, context: {cluster: a}}, {name: prod, context: {cluster: a}}]",
            "context 'test' not found; choose dev, prod",
        ),
        ("[]", "context 'test' not found; there is no context in it"),
    ],
)
def test_a_context_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, contexts: str, said: str) -> None:
    file = tmp_path / "config"
    file.write_text(f"apiVersion: v1\nkind: Config\ncontexts: {contexts}\n")
    with pytest.raises(InvalidKubeconfig) as error:
        select_context(read_files([file]), "test")
    assert str(error.value) == said
