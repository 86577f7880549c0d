"""What a call to AWS is, as data: its name, what is read of its answer, how often it may be made, and when it is made again.

======================================  =========  ============  ==========  =======
what came back                          ``READ``   ``REPEAT``    ``ONCE``    ``TRY``
                                                   ``ABLE``
======================================  =========  ============  ==========  =======
no connection, so nothing was sent      again      again         again       no
AWS asks for fewer calls                again      again         again       no
5xx                                     again      again         no          no
no answer, a broken connection          again      no            no          no
anything else                           no         no            no          no
======================================  =========  ============  ==========  =======

A read may be made as often as one likes. Repeatable is what AWS itself recognises as the same when it comes twice: a CreateFleet
that carries a client token and is the same to the letter. A 5xx to it is answered for good by asking again; when the answer is
lost the caller is told, since it may want to look first. A CreateFleet without a token, and whatever else makes something, is
sent once: who hears of a failure looks at the world and decides afresh. Ending and tagging machines count as reads here: done
twice they do the same. Dry runs are tried once (AWS-116); they ask again in their own time.

The library's own repetition is off, so that each attempt is paced, counted and may be given up (AWS-755: three attempts as its
standard mode has; two more where AWS only asks for patience).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from karpenter.providers.aws.boto.faults import NOT_CONNECTED
from karpenter.providers.aws.boto.pacing import Group
from karpenter.providers.aws.errors import AwsError

R = TypeVar("R")

_ATTEMPTS = 3
_ATTEMPTS_WHEN_THROTTLED = 5


class Repetition(Enum):
    """When a failed call is made again; see the head of this module."""

    READ = auto()
    REPEATABLE = auto()
    ONCE = auto()
    TRY = auto()


@dataclass(frozen=True, slots=True)
class Pages:
    """How a list comes in pages: under which name the next one is announced, and asked for."""

    announced: str = "NextToken"
    asked: str = "NextToken"


@dataclass(frozen=True)
class Operation(Generic[R]):
    """A call: AWS's name of it, the member of its answer that is wanted (empty: the whole) and the type that is decoded into."""

    name: str
    member: str
    type: type[R]
    group: Group
    repetition: Repetition = Repetition.READ
    pages: Pages = Pages()


def is_repeated(repetition: Repetition, error: AwsError, attempts: int) -> bool:
    """Whether a call that failed so after this many attempts is made again."""
    if repetition is Repetition.TRY:
        return False
    if error.is_throttling:
        return attempts < _ATTEMPTS_WHEN_THROTTLED
    return attempts < _ATTEMPTS and _is_harmless(repetition, error)


def _is_harmless(repetition: Repetition, error: AwsError) -> bool:
    if error.code == NOT_CONNECTED:
        return True
    if repetition is Repetition.READ:
        return error.has_no_answer
    return repetition is Repetition.REPEATABLE and error.status >= 500
