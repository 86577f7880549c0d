"""Rules about objects of any kind: what every API server refuses, what older releases understood, what no controller reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from karpenter.lint.lint_input import LintInput
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.lint.rules.reported_findings import advice, matched, reported
from karpenter.model import labels
from karpenter.model.structural_schema import child_path

_MALFORMED = "malformed"
_OLD_CODES = frozenset({"old", "version"})
_WITHOUT_EFFECT = frozenset({"value", "static", "percentage"})
#: Keys of older releases, and what to write instead.
_OLD_KEYS: Mapping[str, str] = {
    "karpenter.sh/do-not-evict": labels.DO_NOT_DISRUPT,
    "karpenter.sh/do-not-consolidate": labels.DO_NOT_DISRUPT,
    "karpenter.sh/provisioner-name": labels.NODE_POOL,
    **{key: stable for key, stable in labels.LABEL_ALIASES.items() if "beta" in key},
}
#: Prefixes that 1.0 took away.
_OLD_PREFIXES = ("compatibility.karpenter.sh/", "compatibility.karpenter.k8s.aws/")
#: What Cluster Autoscaler alone reads.
_FOREIGN_KEYS: Mapping[str, str] = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": f"{labels.DO_NOT_DISRUPT}: a duration, or true",
    "cluster-autoscaler.kubernetes.io/scale-down-disabled": f"{labels.DO_NOT_DISRUPT}: true",
}


def _malformed(lint_input: LintInput) -> Iterator[Match]:
    return (reported(finding) for finding in lint_input.problems if finding.code == _MALFORMED)


def _invalid(lint_input: LintInput) -> Iterator[Match]:
    own = _OLD_CODES | {_MALFORMED}
    return (reported(finding) for finding in lint_input.problems if finding.code not in own)


def _old_kind(lint_input: LintInput) -> Iterator[Match]:
    return (reported(finding) for finding in lint_input.problems if finding.code in _OLD_CODES)


def _similar_label(lint_input: LintInput) -> Iterator[Match]:
    return (reported(finding) for finding in lint_input.notices if finding.code == "similar label")


def _odd_quantity(lint_input: LintInput) -> Iterator[Match]:
    return (reported(finding) for finding in lint_input.notices if finding.code == "odd quantity")


def _old_keys(lint_input: LintInput) -> Iterator[Match]:
    for where in lint_input.objects:
        for path, key in _keys_of(where.content, ""):
            if key in _OLD_KEYS:
                yield Match(where, path, f"{key} is of an older release; write {_OLD_KEYS[key]}")
            elif key.startswith(_OLD_PREFIXES):
                yield Match(where, path, f"{key} has no effect since Karpenter 1.0; leave it out")


def _foreign_keys(lint_input: LintInput) -> Iterator[Match]:
    for where in lint_input.objects:
        for path, key in _keys_of(where.content, ""):
            if key in _FOREIGN_KEYS:
                yield Match(where, path, f"{key} is of Cluster Autoscaler; write {_FOREIGN_KEYS[key]}")


def _keys_of(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Keys of maps with the paths of their values, and labels that requirements and selectors name as ``key``."""
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _keys_of(element, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, member in value.items():
            here = child_path(path, name)
            yield here, name
            if name in ("key", "topologyKey") and isinstance(member, str):
                yield here, member
            yield from _keys_of(member, here)


def _misspelt_annotation(lint_input: LintInput) -> Iterator[Match]:
    for where, _, finding in advice(lint_input):
        if finding.code == "unknown":
            yield matched(where, finding)


def _without_effect(lint_input: LintInput) -> Iterator[Match]:
    for where, _, finding in advice(lint_input):
        if finding.code in _WITHOUT_EFFECT:
            yield matched(where, finding)


def _gated(lint_input: LintInput) -> Iterator[Match]:
    for where, _, finding in advice(lint_input):
        if finding.code == "gate":
            yield Match(where, finding.path, f"{finding.message} by default")


RULES = (
    Rule(
        "KL001",
        "malformed-file",
        Severity.ERROR,
        Topic.OBJECTS,
        "A document is neither YAML nor JSON, or has a key twice.",
        "Nothing of the document is applied; of a key that stands twice, one value is silently lost.",
        "Correct the line. Render templates first, for example with `helm template`.",
        _malformed,
    ),
    Rule(
        "KL002",
        "invalid-object",
        Severity.ERROR,
        Topic.OBJECTS,
        "An object that admission refuses, or that no controller can use.",
        "The API server rejects the object, drops a field from it, or the controller marks it as not ready.",
        "Follow the message. `karpenter plan -f` reports the same.",
        _invalid,
    ),
    Rule(
        "KL003",
        "old-kind",
        Severity.ERROR,
        Topic.OBJECTS,
        "A kind or version of an older release, such as Provisioner or `karpenter.sh/v1beta1`.",
        "The CRDs of v1 do not serve it.",
        "Run `karpenter convert -f FILE`.",
        _old_kind,
    ),
    Rule(
        "KL004",
        "similar-label",
        Severity.WARNING,
        Topic.OBJECTS,
        "A label that nothing defines and that resembles a well-known one.",
        "Pods that ask for it stay pending; a NodePool that requires it gives its nodes a label nobody selects.",
        "Write the well-known label.",
        _similar_label,
    ),
    Rule(
        "KL005",
        "odd-quantity",
        Severity.WARNING,
        Topic.OBJECTS,
        "A quantity whose unit was probably confused or forgotten: `100M` of CPU, `512m` or `1024` of memory. Looked at are "
        "requests, limits, LimitRanges, what a kubelet reserves and when it evicts, and the capacity of hosts.",
        "`m` means thousandths, `M` millions, and memory without a unit is in bytes: the pod fits no node or requests next to "
        "nothing, and a NodePool launches no node.",
        "Write the unit that is meant, such as `512Mi`.",
        _odd_quantity,
    ),
    Rule(
        "KL006",
        "old-key",
        Severity.WARNING,
        Topic.OBJECTS,
        "An annotation or label of an older release of Karpenter or Kubernetes.",
        "Other releases and tools ignore it, so a protection or a selection is lost without a message.",
        "Write the present key.",
        _old_keys,
    ),
    Rule(
        "KL007",
        "misspelt-annotation",
        Severity.WARNING,
        Topic.OBJECTS,
        "An annotation of a NodePool that nobody reads and that resembles one of ours.",
        "A misspelt freeze freezes nothing.",
        "Correct the key.",
        _misspelt_annotation,
    ),
    Rule(
        "KL008",
        "value-without-effect",
        Severity.WARNING,
        Topic.OBJECTS,
        "A setting whose value is not understood, or that does nothing where it stands.",
        "The default holds although the manifest says otherwise.",
        "Correct the value, or leave the setting out.",
        _without_effect,
    ),
    Rule(
        "KL009",
        "feature-gate-needed",
        Severity.NOTE,
        Topic.OBJECTS,
        "A field that does nothing unless a feature gate is on.",
        "Replicas keep no nodes and reservations are not used, without any error.",
        "Start the controller with `--feature-gates`, or leave the field out.",
        _gated,
    ),
    Rule(
        "KL010",
        "cluster-autoscaler-key",
        Severity.NOTE,
        Topic.OBJECTS,
        "An annotation of Cluster Autoscaler.",
        "This controller reads it; Karpenter does not, and neither gives it an end.",
        "Write `karpenter.sh/do-not-disrupt`.",
        _foreign_keys,
    ),
)
