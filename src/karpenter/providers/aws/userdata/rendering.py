"""From all that is known to the bytes EC2 is given, and how many of them it takes (AWS-225)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from karpenter.providers.aws.userdata import al2, bottlerocket, nodeadm, windows
from karpenter.providers.aws.userdata.families import (
    AL2,
    AL2023,
    BOTTLEROCKET,
    CUSTOM,
    WINDOWS_2019,
    WINDOWS_2022,
    WINDOWS_2025,
)
from karpenter.providers.aws.userdata.inputs import Bootstrap

#: Bytes EC2 takes, before base64.
LIMIT_BYTES = 16384
#: From here on (90 %) the owner is told: the next label may be one too many.
NOTICE_BYTES = 14745

_WRITERS: Mapping[str, Callable[[Bootstrap], str]] = {
    AL2: al2.write,
    AL2023: nodeadm.write,
    BOTTLEROCKET: bottlerocket.write,
    WINDOWS_2019: windows.write,
    WINDOWS_2022: windows.write,
    WINDOWS_2025: windows.write,
    # The image's owner sees to everything (AWS-261).
    CUSTOM: lambda given: given.custom,
}

_log = structlog.get_logger()


def render(given: Bootstrap) -> bytes:
    """The user data, before base64.

    Raises ``UserDataError`` where the owner's part cannot be joined with ours, ``NodeClassNotReady`` where a fact about the
    cluster is missing that the family needs (AWS-248).
    """
    return _WRITERS[given.family](given).encode()


def weigh(data: bytes) -> int:
    """How many bytes the user data has, for ``karpenter_ec2nodeclasses_userdata_bytes``; logged when near the limit."""
    if len(data) >= NOTICE_BYTES:
        _log.info(
            "user data is close to the size EC2 takes",
            **{"userdata-bytes": len(data), "warn-threshold": NOTICE_BYTES, "limit": LIMIT_BYTES},
        )
    return len(data)
