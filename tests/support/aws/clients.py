"""Plain boto3 clients for the double, one try a call, as tests use them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import boto3
from botocore.config import Config

_CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=60)


class Place(Protocol):
    """Where AWS is: its end point and region."""

    @property
    def url(self) -> str:
        """Where it listens."""

    @property
    def region_name(self) -> str:
        """The region it plays."""


def client(double: Place, service: str) -> Any:
    """A client of a service; the same one whenever asked, for making one takes long."""
    return _client(double.url, double.region_name, service)


@lru_cache(maxsize=64)
def _client(url: str, region: str, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=region,
        aws_access_key_id="AKIADOUBLE",
        aws_secret_access_key="secret",
        config=_CONFIG,
    )
