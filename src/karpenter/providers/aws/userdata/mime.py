"""User data of several parts, as cloud-init and nodeadm read it (AWS-240 to AWS-242, AWS-245)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email import message_from_string
from email.message import Message

from karpenter.providers.aws.userdata.inputs import UserDataError

SHELL = 'text/x-shellscript; charset="us-ascii"'
NODE_CONFIG = "application/node.eks.aws"

_BOUNDARY = "//"
_STARTS = ("MIME-Version:", "Content-Type:")


@dataclass(frozen=True)
class Part:
    """One part: its headers as they are, in their order, and its text."""

    headers: tuple[tuple[str, str], ...]
    text: str


def part(content_type: str, text: str) -> Part:
    """A part of our own."""
    return Part((("Content-Type", content_type),), text)


def is_mime(text: str) -> bool:
    """Whether a text says of itself that it is MIME (AWS-242)."""
    return text.strip().startswith(_STARTS)


def parts_of(text: str) -> tuple[Part, ...]:
    """The parts of a MIME text. Raises ``UserDataError`` where it has none."""
    message = message_from_string(text.strip().replace("\r", ""))
    if message.get_content_maintype() != "multipart":
        raise UserDataError(f"userData is MIME of type {message.get_content_type()}; it must be multipart")
    if not message.is_multipart():
        raise UserDataError("userData is multipart MIME without any part; check its boundary")
    return tuple(_part(inner) for inner in message.get_payload() if isinstance(inner, Message))


def joined(parts: Iterable[Part]) -> str:
    """The parts as one MIME text, without carriage returns (AWS-240). Raises ``UserDataError`` where a part has our boundary."""
    return "\n".join(_lines(parts)).replace("\r", "")


def _lines(parts: Iterable[Part]) -> Iterator[str]:
    yield "MIME-Version: 1.0"
    yield f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"'
    yield ""
    for one in parts:
        if any(line.startswith(f"--{_BOUNDARY}") for line in one.text.splitlines()):
            raise UserDataError(f"userData has a line that starts with --{_BOUNDARY}, which is where its parts end")
        yield f"--{_BOUNDARY}"
        yield from (f"{name}: {value}" for name, value in one.headers)
        yield ""
        yield one.text
    yield f"--{_BOUNDARY}--"
    yield ""


def _part(message: Message) -> Part:
    payload = message.get_payload()
    if isinstance(payload, str):
        return Part(tuple((name, str(value)) for name, value in message.items()), payload)
    # A multipart inside: its text begins behind its own headers.
    return Part(tuple((name, str(value)) for name, value in message.items()), message.as_string().partition("\n\n")[2])
