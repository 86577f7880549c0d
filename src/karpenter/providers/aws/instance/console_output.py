"""The end of an instance's console output, without secrets (AWS-932).

What an instance prints is foreign text: user data that runs with ``set -x`` prints the bootstrap token. Secrets are masked in the
whole text before its end is cut off, so that no half of one remains.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import structlog

from karpenter.model.clock import Clock
from karpenter.model.texts import shorten
from karpenter.providers.aws.aws_apis import InstanceApi
from karpenter.providers.aws.aws_errors import AwsError

MASK = "[masked]"
#: Characters of the tail, so that it fits into an event beside the instance and the reason (1024).
MAX_TAIL_LENGTH = 700
_MAX_LINE_LENGTH = 200
#: EC2 keeps 64 KiB; no more is ever searched.
_MAX_SEARCHED = 65_536
#: No call for so long after EC2 said that the controller may not.
_DENIED_FOR = timedelta(hours=1)
_log = structlog.get_logger()

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]{0,16}[ -/]?[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Each has what stays in front of the secret as its first group. Repetitions are bounded: the text is foreign.
_SECRETS = (
    re.compile(r"()-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL),
    # A bootstrap token.
    re.compile(r"()(?<![a-zA-Z0-9])[a-z0-9]{6}\.[a-z0-9]{16}(?![a-zA-Z0-9])"),
    # Access keys of AWS and JSON Web Tokens.
    re.compile(r"()(?:AKIA|ASIA)[A-Z0-9]{16}"),
    re.compile(r"()eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"),
    re.compile(r"(?i)((?:bearer|basic)[ \t]{1,4})[A-Za-z0-9+/=._~-]{8,}"),
    re.compile(r"(?i)(--[a-z-]{0,20}(?:token|password|secret|certificate-key)[ \t]{1,4})[^\s\\]+"),
    re.compile(
        r"(?i)((?:token|passw(?:or)?d|secret|credential|private[_-]?key|api[_-]?key|access[_-]?key|key-data)"
        r"[a-z_-]{0,40}[\"']?[ \t]{0,4}[:=][ \t]{0,4})[\"']?[^\s\"',]+"
    ),
)
_OPAQUE = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")


def masked_tail(output: str) -> str:
    """The last lines of a console output, long ones cut, with every secret replaced by ``[masked]``."""
    text = output.replace("\r\n", "\n")
    if len(text) > _MAX_SEARCHED:
        # Without the first remaining line: a secret in it may have lost the prefix that identifies it as one.
        text = text[-_MAX_SEARCHED:].partition("\n")[2]
    lines = [shorten(line.strip(), _MAX_LINE_LENGTH) for line in masked(_TERMINAL_CODES.sub("", text)).splitlines()]
    tail: list[str] = []
    length = 0
    for line in reversed([line for line in lines if line]):
        length += len(line) + 1
        if length > MAX_TAIL_LENGTH:
            break
        tail.insert(0, line)
    return "\n".join(tail)


def masked(text: str) -> str:
    """The text with ``[masked]`` for whatever looks like a secret: tokens, passwords, private keys, long opaque values."""
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{MASK}", text)
    return _OPAQUE.sub(lambda match: MASK if _is_opaque(match.group()) else match.group(), text)


def _is_opaque(run: str) -> bool:
    """Whether a long run is encoded data. Hexadecimal digests and paths are not: they have no letters of both cases."""
    return any(c.isupper() for c in run) and any(c.islower() for c in run) and any(c.isdigit() for c in run)


class ConsoleOutputReader:
    """Reads console output where the controller may (``ec2:GetConsoleOutput``), and gives nothing where it may not."""

    def __init__(self, ec2: InstanceApi, clock: Clock) -> None:
        self._ec2 = ec2
        self._clock = clock
        self._denied_until: datetime | None = None

    async def tail(self, instance_id: str) -> str:
        """The end of what an instance printed, masked; empty where there is nothing, or it cannot be had."""
        for read in (self._ec2.get_latest_console_output, self._ec2.get_console_output):
            if self._denied_until is not None and self._clock.now() < self._denied_until:
                return ""
            try:
                output = await read(instance_id)
            except AwsError as error:
                self._note(error)
                continue
            if tail := masked_tail(output):
                return tail
        return ""

    def _note(self, error: AwsError) -> None:
        if not error.is_unauthorized:
            # Only instances on Nitro that run have a latest output; one that is long gone has none.
            _log.debug("console output cannot be read", error=str(error))
            return
        self._denied_until = self._clock.now() + _DENIED_FOR
        _log.warning(
            "console output of instances that do not join is not shown: allow ec2:GetConsoleOutput", error=str(error)
        )
