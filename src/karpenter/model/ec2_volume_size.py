"""Sizes of EBS volumes as classes write them (AWS-054, API-248).

Admission checks the text alone and has always accepted units without a number. Such a text has no meaning: the node class
controller reports it, and nothing is launched with a size that was not written.
"""

from __future__ import annotations

from karpenter.model import quantity

_GIB_MILLI = 2**30 * quantity.MILLI
#: The largest volume there is: 64 TB.
_LARGEST_MILLI = 64 * 10**12 * quantity.MILLI


class VolumeSizeError(ValueError):
    """A text that is no size of a volume. The text of the error says why."""


def volume_size_gib(text: str) -> int:
    """The size in whole GiB, rounded up as volumes are made (AWS-491). Raises ``VolumeSizeError``."""
    return -(-_milli(text) // _GIB_MILLI)


def volume_size_bytes(text: str) -> int:
    """The size in bytes, as it is written (AWS-293). Raises ``VolumeSizeError``."""
    return _milli(text) // quantity.MILLI


def _milli(text: str) -> int:
    try:
        size = quantity.parse_milli(text)
    except quantity.QuantityError as error:
        raise VolumeSizeError(f"{text!r} is not a size such as 20Gi") from error
    if not 0 < size <= _LARGEST_MILLI:
        raise VolumeSizeError(f"{text} is not between 1Gi and 64T")
    return size
