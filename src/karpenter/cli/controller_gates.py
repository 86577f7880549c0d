"""Whether the controller of a cluster has a feature gate on, by its Deployment: for commands whose effect needs one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from karpenter.api import kinds
from karpenter.api.apps import ConfiguredDeployment
from karpenter.cli.terminal import CommandError, print_error
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Kube
from karpenter.model.feature_gate_flags import FeatureGateError, parse_feature_gates
from karpenter.model.feature_gates import FeatureGate

_CONTROLLERS = "app.kubernetes.io/name=karpenter"
_FLAG, _VARIABLE = "--feature-gates", "FEATURE_GATES"


async def require_gate(kube: Kube, gate: FeatureGate) -> None:
    """Raises ``CommandError`` where the controller's Deployment leaves the gate off. Says so where that is not known."""
    try:
        listed = await _controllers(kube)
    except KubeError as error:
        print_error(f"note: the Deployment of the controller could not be read ({error}); {_needs(gate)}")
        return
    if not listed:
        print_error(f"note: no Deployment of the controller was found; {_needs(gate)}")
    elif why := _why_off(listed, gate):
        raise CommandError(why)


async def why_gate_is_off(kube: Kube, gate: FeatureGate) -> str:
    """The Deployment that leaves the gate off, and how to mend that; empty where the gate is on or that is not known."""
    try:
        return _why_off(await _controllers(kube), gate)
    except KubeError:
        return ""


async def _controllers(kube: Kube) -> tuple[ConfiguredDeployment, ...]:
    return tuple((await kube.list(kinds.CONFIGURED_DEPLOYMENT, label_selector=_CONTROLLERS)).items)


def _why_off(controllers: Sequence[ConfiguredDeployment], gate: FeatureGate) -> str:
    if not controllers or any(_has_gate(deployment, gate) for deployment in controllers):
        return ""
    metadata = controllers[0].metadata
    return (
        f"Deployment {metadata.namespace}/{metadata.name} has the feature gate {gate} off, so this would have no effect; "
        f"set {gate}=true in its {_VARIABLE} first"
    )


def _needs(gate: FeatureGate) -> str:
    return f"only with its feature gate {gate} this has an effect"


def _has_gate(deployment: ConfiguredDeployment, gate: FeatureGate) -> bool:
    """Whether it is on as far as can be read: a list that comes from elsewhere may have it on."""
    for text in _gate_lists(deployment):
        try:
            if text is None or gate in parse_feature_gates(text).enabled:
                return True
        except FeatureGateError:
            continue
    return False


def _gate_lists(deployment: ConfiguredDeployment) -> Iterator[str | None]:
    """The lists of gates that its containers are given, None for one of a ConfigMap or the like."""
    for container in deployment.spec.template.spec.containers:
        yield from _gate_flags(container.args)
        yield from (variable.value for variable in container.env if variable.name == _VARIABLE)
        if container.env_from:
            yield None


def _gate_flags(arguments: Iterable[str]) -> Iterator[str]:
    words = iter(arguments)
    for word in words:
        if word == _FLAG:
            yield next(words, "")
        elif word.startswith(f"{_FLAG}="):
            yield word.partition("=")[2]
