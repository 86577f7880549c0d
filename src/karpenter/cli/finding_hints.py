"""What was probably meant, added to findings about our own kinds: a label that is nearly right, a field that moved."""

from __future__ import annotations

import re
from dataclasses import replace

from karpenter.cli.label_advice import similar_label
from karpenter.model.structural_schema import Finding

_QUOTED_LABEL = re.compile(r'"([^"/]+/[^"]+)"')
#: Fields of v1beta1 with their place in v1.
_MOVED_FIELDS = {
    "spec.disruption.expireAfter": "spec.template.spec.expireAfter",
    "spec.template.spec.kubelet": "spec.kubelet of the EC2NodeClass",
    "spec.template.spec.resources": "no field of v1: leave it out",
}


def with_hint(finding: Finding) -> Finding:
    """The finding with what was probably meant, where that is known."""
    if finding.code == "unknown" and finding.path in _MOVED_FIELDS:
        return replace(finding, message=f"{finding.message.partition(';')[0]}; it is now {_MOVED_FIELDS[finding.path]}")
    label = _QUOTED_LABEL.search(finding.message) if finding.code == "restricted" else None
    meant = similar_label(label[1]) if label is not None else ""
    return replace(finding, message=f"{finding.message.partition(';')[0]}; did you mean {meant}?") if meant else finding
