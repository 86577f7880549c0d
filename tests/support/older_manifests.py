"""Objects of older Karpenter releases, and what their conversion says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from karpenter.conversion.drafts import InputObject
from karpenter.conversion.json_fields import Json
from karpenter.conversion.manifests import ConvertedManifests, convert_manifests
from karpenter.conversion.notes import NoteLevel
from karpenter.conversion.options import ConversionOptions

#: Classes that name their role need no warning about it.
WITH_ROLE = ConversionOptions(node_role="worker")
SELECTED = {"subnetSelector": {"team": "shop"}, "securityGroupSelector": {"team": "shop"}}
BETA_TERMS = {
    "subnetSelectorTerms": [{"tags": {"team": "shop"}}],
    "securityGroupSelectorTerms": [{"tags": {"team": "shop"}}],
    "role": "worker",
}


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion as tests read it."""

    converted: ConvertedManifests

    @property
    def objects(self) -> tuple[Json, ...]:
        return self.converted.objects

    @property
    def only(self) -> Json:
        (content,) = self.objects
        return content

    def at(self, path: str, index: int = 0) -> object:
        """The value at ``spec.template.spec`` or another path of an object of the output; None where there is none."""
        value: object = self.objects[index]
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def notes(self, level: NoteLevel) -> list[str]:
        return [f"{n.path}: {n.text}" for noted in self.converted.notes for n in noted.notes if n.level is level]

    @property
    def warnings(self) -> list[str]:
        return self.notes(NoteLevel.WARN)

    @property
    def information(self) -> list[str]:
        return self.notes(NoteLevel.INFO)

    @property
    def errors(self) -> list[str]:
        return self.notes(NoteLevel.ERROR)


def convert(*contents: Json, options: ConversionOptions = WITH_ROLE) -> Conversion:
    inputs = [InputObject(f"test.yaml:{number}", content) for number, content in enumerate(contents, 1)]
    return Conversion(convert_manifests(inputs, options))


def with_options(**changes: str | bool) -> ConversionOptions:
    return replace(WITH_ROLE, **changes)  # names and types are checked where they are used


def manifest(api_version: str, kind: str, spec: Mapping[str, object], **metadata: object) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "shop", **metadata}, "spec": dict(spec)}


def provisioner(spec: Mapping[str, object] | None = None, **metadata: object) -> Json:
    """A Provisioner that refers to AWSNodeTemplate ``shop``."""
    return manifest(
        "karpenter.sh/v1alpha5", "Provisioner", {"providerRef": {"name": "shop"}, **(spec or {})}, **metadata
    )


def machine(spec: Mapping[str, object], **metadata: object) -> Json:
    return manifest("karpenter.sh/v1alpha5", "Machine", {"machineTemplateRef": {"name": "shop"}, **spec}, **metadata)


def node_template(spec: Mapping[str, object] | None = None, **metadata: object) -> Json:
    return manifest("karpenter.k8s.aws/v1alpha1", "AWSNodeTemplate", {**SELECTED, **(spec or {})}, **metadata)


def beta_class(spec: Mapping[str, object] | None = None, **metadata: object) -> Json:
    filled = {"amiFamily": "AL2023", **BETA_TERMS, **(spec or {})}
    return manifest("karpenter.k8s.aws/v1beta1", "EC2NodeClass", filled, **metadata)


def beta_pool(
    template_spec: Mapping[str, object] | None = None, spec: Mapping[str, object] | None = None, **metadata: object
) -> Json:
    filled = {"nodeClassRef": {"name": "shop"}, "requirements": [], **(template_spec or {})}
    return manifest("karpenter.sh/v1beta1", "NodePool", {"template": {"spec": filled}, **(spec or {})}, **metadata)
