"""boto3 clients for the double, without retries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import boto3
from botocore.config import Config

_CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=60)
_ACCESS_KEY_ID, _SECRET_ACCESS_KEY = "AKIADOUBLE", "secret"


class AwsEndpoint(Protocol):
    """The endpoint URL and region of AWS or its double."""

    @property
    def url(self) -> str:
        """The endpoint URL."""

    @property
    def region_name(self) -> str:
        """The name of the region."""


def sdk_environment(aws: AwsEndpoint) -> dict[str, str]:
    """Environment that points the AWS SDK to the double."""
    return {
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_REGION": aws.region_name,
        "AWS_ACCESS_KEY_ID": _ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": _SECRET_ACCESS_KEY,
    }


def client(double: AwsEndpoint, service: str) -> Any:
    """A client of a service. Clients are cached because creating one is slow."""
    return _client(double.url, double.region_name, service)


@lru_cache(maxsize=64)
def _client(url: str, region: str, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=region,
        aws_access_key_id=_ACCESS_KEY_ID,
        aws_secret_access_key=_SECRET_ACCESS_KEY,
        config=_CONFIG,
    )
