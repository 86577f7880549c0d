"""Registration hooks: what a cloud has to finish before pods may come to a machine (OPS §1.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from karpenter.act.draft import Draft
from karpenter.act.pauses import Pauses
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.providers.contract import Pending, ProviderError, RegistrationHook, Satisfied

_Answer = Satisfied | Pending | ProviderError
_log = structlog.get_logger()


@dataclass(frozen=True)
class _Heard:
    """What all hooks said: those not satisfied, by name and in their order, and what the others learned."""

    waiting: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    again_seconds: tuple[float | None, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class Hooks:
    """Asks the provider's hooks, all at once and in every pass."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pauses = Pauses()

    def forget(self, name: str) -> None:
        """The claim is registered or gone."""
        self._pauses.forget(name)

    async def ask(self, draft: Draft) -> tuple[str, ...]:
        """Put what the hooks learned onto the draft; the names of those that hold registration up, in their order (OPS-031).

        The draft is looked at again when the first of them wants to be asked; a hook that failed is among the draft's errors.
        """
        hooks = self._world.provider.registration_hooks()
        answers = await asyncio.gather(*(_ask(hook, draft.claim) for hook in hooks))
        heard = _heard(hooks, answers)
        draft.merge_metadata(heard.labels, heard.annotations)
        if not heard.waiting:
            self._pauses.forget(draft.name)
            return ()
        _log.debug("awaiting registration hooks", hooks=list(heard.waiting))
        if heard.failures:
            draft.errors.append(ProviderError("; ".join(heard.failures)))
        if heard.again_seconds:
            growing = self._growing(draft.claim) if None in heard.again_seconds else 0.0
            draft.look_again(min(growing if seconds is None else seconds for seconds in heard.again_seconds))
        return heard.waiting

    def _growing(self, claim: NodeClaim) -> float:
        """Seconds until hooks that name no time are asked again; looks for other reasons do not make it longer."""
        return self._pauses.left(claim) or self._pauses.lengthen(claim)


async def _ask(hook: RegistrationHook, claim: NodeClaim) -> _Answer:
    try:
        return await hook.ask(claim)
    except ProviderError as error:
        return error


def _heard(hooks: tuple[RegistrationHook, ...], answers: list[_Answer]) -> _Heard:
    waiting, failures, again = [], [], []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for hook, answer in zip(hooks, answers, strict=True):
        match answer:
            case Satisfied():
                labels |= answer.labels
                annotations |= answer.annotations
                continue
            case Pending():
                again.append(answer.retry_after.total_seconds() if answer.retry_after is not None else None)
            case ProviderError():
                failures.append(f'registration hook "{hook.name}" failed, {answer}')
        waiting.append(hook.name)
    return _Heard(tuple(waiting), tuple(failures), tuple(again), labels, annotations)
