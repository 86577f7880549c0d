"""What every describe call of EC2 shares: filters with wildcards, lookups by id, pages (AWS-960 to AWS-973)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from support.aws.wire import Fields, Refusal

#: Reads the values of an entry that a filter compares.
Reader = Callable[[Fields], Iterable[str]]


class Paging(NamedTuple):
    """The key of the list in an answer, and EC2's largest page size."""

    key: str
    largest: int = 1000


#: A describe call without an entry answers in one page and does not accept ``MaxResults``.
PAGED = {
    "DescribeInstanceTypes": Paging("InstanceTypes", 100),
    "DescribeInstanceTypeOfferings": Paging("InstanceTypeOfferings"),
    "DescribeSpotPriceHistory": Paging("SpotPriceHistory"),
    "DescribeSubnets": Paging("Subnets"),
    "DescribeSecurityGroups": Paging("SecurityGroups"),
    "DescribeImages": Paging("Images"),
    "DescribeCapacityReservations": Paging("CapacityReservations"),
    "DescribeLaunchTemplates": Paging("LaunchTemplates", 200),
    "DescribeInstances": Paging("Reservations"),
    "DescribeInstanceStatus": Paging("InstanceStatuses"),
}
#: Calls that return everything unless pages are requested; all others always page.
_WHOLE = frozenset({"DescribeInstances", "DescribeImages", "DescribeSubnets"})
#: Calls that cannot take ids and a page size at once.
_IDS = {
    "DescribeInstances": "InstanceIds",
    "DescribeInstanceStatus": "InstanceIds",
    "DescribeInstanceTypes": "InstanceTypes",
    "DescribeCapacityReservations": "CapacityReservationIds",
}


def page(operation: str, parameters: Fields, answer: Fields) -> Fields:
    """The requested page of an answer, with the token of the next one. Raises ``Refusal``."""
    paging = PAGED.get(operation)
    if paging is None:
        return answer
    size = parameters.get("MaxResults")
    _check_size(operation, parameters, paging.largest)
    if size is None and operation in _WHOLE:
        return answer
    start, size = _start(parameters), min(size or paging.largest, paging.largest)
    entries = list(answer[paging.key])
    rest = {"NextToken": f"from-{start + size}"} if start + size < len(entries) else {}
    return {**answer, paging.key: entries[start : start + size], **rest}


def _check_size(operation: str, parameters: Fields, largest: int) -> None:
    size = parameters.get("MaxResults")
    if size is None:
        return
    ids = _IDS.get(operation)
    if ids and parameters.get(ids):
        raise Refusal(
            "InvalidParameterCombination", f"The parameter {ids} cannot be used with the parameter maxResults"
        )
    if operation == "DescribeInstanceTypes" and not 5 <= size <= largest:
        raise Refusal(
            "InvalidParameterValue", f"Value ( {size} ) for parameter maxResults is invalid. Expecting 5 to 100."
        )


def _start(parameters: Fields) -> int:
    token = parameters.get("NextToken") or "from-0"
    fullmatch = re.fullmatch(r"from-(\d+)", token)
    if fullmatch is None:
        raise Refusal("InvalidNextToken", f"The token '{token}' is invalid")
    return int(fullmatch.group(1))


def select(entries: Iterable[Fields], filters: Sequence[Fields] | None, readers: Mapping[str, Reader]) -> list[Fields]:
    """Entries that pass every filter; any value of a filter matches. Raises ``Refusal`` for an unknown filter."""
    result = list(entries)
    for entry_filter in filters or ():
        read = _reader(entry_filter["Name"], readers)
        wanted = [_pattern(value) for value in entry_filter.get("Values") or ()]
        result = [entry for entry in result if _passes(read(entry), wanted)]
    return result


def _passes(values: Iterable[str], wanted: Sequence[re.Pattern[str]]) -> bool:
    return any(pattern.fullmatch(value) for value in values for pattern in wanted)


def _reader(name: str, readers: Mapping[str, Reader]) -> Reader:
    if name.startswith("tag:"):
        return tag_values(name[4:])
    if name == "tag-key":
        return lambda entry: [tag["Key"] for tag in entry.get("Tags", ())]
    if name not in readers:
        raise Refusal("InvalidParameterValue", f"The filter '{name}' is invalid")
    return readers[name]


def tag_values(key: str) -> Reader:
    """Reads the value of one tag."""
    return lambda entry: [tag["Value"] for tag in entry.get("Tags", ()) if tag["Key"] == key]


def at(*path: str) -> Reader:
    """Reads the values at a path of keys; reads all elements of a list on the path."""

    def read(entry: Fields) -> list[str]:
        result: list[object] = [entry]
        for key in path:
            result = [value for element in result if isinstance(element, dict) for value in _several(element.get(key))]
        return [_text(value) for value in result]

    return read


def _several(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache(maxsize=4096)
def _pattern(value: str) -> re.Pattern[str]:
    """EC2's own wildcards: ``*`` and ``?``."""
    pieces = {"*": ".*", "?": "."}
    return re.compile("".join(pieces.get(letter, re.escape(letter)) for letter in value), re.DOTALL)


def named(entries: Iterable[Fields], key: str, wanted: Sequence[str] | None, code: str) -> list[Fields]:
    """Entries by id or name; all if none are named. Raises ``Refusal`` with ``code`` if one is missing."""
    if not wanted:
        return list(entries)
    by_name = {entry[key]: entry for entry in entries}
    missing = sorted(set(wanted) - set(by_name))
    if missing:
        raise Refusal(code, f"The {key} '{', '.join(missing)}' does not exist")
    return [by_name[name] for name in dict.fromkeys(wanted)]
