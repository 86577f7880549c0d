"""Errors of a session without region, credentials or a reachable service say what to do."""

from __future__ import annotations

import pytest

from karpenter.metrics import Metrics
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.sdk.aws_session import AwsSession
from support.aws.double import Double
from support.aws.refusals import refused_call


async def test_without_a_region_the_error_says_how_to_set_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    nowhere = AwsSession(_figures())
    assert "set AWS_REGION" in str(await refused_call(nowhere.open(), "NoRegion"))
    nowhere.close()


async def test_without_credentials_the_error_says_where_they_come_from(
    aws: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    nobody = AwsSession(_figures())
    await nobody.open()
    assert "IRSA or a pod identity" in str(await refused_call(nobody.probe(), "NoCredentials"))
    nobody.close()


async def test_an_unreachable_service_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    alone = AwsSession(_figures())
    await alone.open()
    error = await refused_call(alone.probe(), "NotConnected")
    assert "http://127.0.0.1:1" in str(error)
    assert not error.has_no_answer
    alone.close()


def _figures() -> SdkMetrics:
    return SdkMetrics(Metrics())
