"""Calls to a cluster that are made side by side: the first that fails is told, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from karpenter.cli.cluster_reader import ClusterUnreachable, query_cluster
from karpenter.kube.client_settings import KubeClientSettings
from karpenter.kube.errors import ServerUnavailable
from karpenter.kube.protocol import Kube

_KUBECONFIG = """
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


async def _fails_at_once() -> None:
    raise ServerUnavailable("down")


async def _fails_while_it_is_ended() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise ServerUnavailable("down, too")


async def _asks_for_both(_kube: Kube) -> None:
    await asyncio.gather(_fails_at_once(), _fails_while_it_is_ended())


def test_a_call_that_fails_after_the_first_one_leaves_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under load, asyncio wrote a traceback for each of them when the command ended."""
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(_KUBECONFIG)
    with pytest.raises(ClusterUnreachable, match="down"):
        query_cluster(KubeClientSettings(kubeconfig=str(kubeconfig)), _asks_for_both)
    assert caplog.records == []
