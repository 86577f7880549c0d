"""Writes what the charts say about settings and kinds, from their declarations. ``python tools/chart_files.py`` (`make charts`).

Four files of ``charts/karpenter`` repeat the settings: the end of ``values.yaml``, the schema of ``settings``, the template that
maps values to environment variables, and the tables of ``README.md``. Both charts carry the CustomResourceDefinitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import yaml

from karpenter.api import crds
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.model.feature_gates import FeatureGate
from karpenter.model.setting_kinds import Profile, Setting
from karpenter.providers.aws.aws_settings import AWS_GATES
from karpenter.runtime.intervals import INTERVALS
from karpenter.settings import SETTINGS

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "karpenter"
DEFINITIONS = (CHART / "crds", ROOT / "charts" / "karpenter-crd" / "files")
Json = dict[str, object]

#: Settings with values of their own outside of ``settings``.
ELSEWHERE: Mapping[str, str] = {
    "provider": "provider",
    "log_level": "logLevel",
    "log_output_paths": "logOutputPaths",
    "log_error_output_paths": "logErrorOutputPaths",
    "metrics_port": "controller.metrics.port",
    "health_probe_port": "controller.healthProbe.port",
    "cpu_requests": "controller.resources.requests.cpu",
    "memory_limit": "controller.resources.limits.memory",
    "webhook_port": "webhook.port",
    "disable_webhook": "webhook.enabled",
    "feature_gates": "settings.featureGates",
    "aws_feature_gates": "settings.awsFeatureGates",
}
#: Settings without a value: a pod uses its ServiceAccount, and its webhook is behind the chart's Service.
WITHOUT_VALUE = frozenset({"kubeconfig", "context", "karpenter_service", "webhook_url"})
#: Gates of AWS that `settings.enableDRA` switches on, and that make device claims count (K15-A106, K15-A107).
_DEVICE_GATES = ("DRANVIDIAGPU", "DRAEFA")
_ENABLE_DRA = (
    "Count device claims, and know the GPUs and EFA interfaces of EC2 types. Excludes the three values it stands for."
)
_ACRONYMS = {
    "Ca": "CA",
    "Vpc": "VPC",
    "Enis": "ENIs",
    "Dra": "DRA",
    "Qps": "QPS",
    "Dns": "DNS",
    "Ip": "IP",
    "Cidr": "CIDR",
}
_TEMPLATED = r".*\{\{.*\}\}.*"
_DURATION = r"0|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+"


def value_name(variable: str) -> str:
    """The name of a value under ``settings``: that of its environment variable in camel case."""
    first, *others = variable.removeprefix("KARPENTER_").lower().split("_")
    return first + "".join(_ACRONYMS.get(word.capitalize(), word.capitalize()) for word in others)


def gate_value_name(gate: str) -> str:
    """The name of a feature gate's value: ``draEFA`` for DRAEFA, as in Karpenter's chart (K15-A107)."""
    acronym = re.match(r"DRA|[A-Z]", gate)
    assert acronym is not None
    return acronym[0].lower() + gate[acronym.end() :]


def settings_values() -> Mapping[str, Setting]:
    """Settings with a value under ``settings``, by that value's name."""
    others = ELSEWHERE.keys() | WITHOUT_VALUE
    return {value_name(one.spelling.variable): one for name, one in SETTINGS.items() if name not in others}


def interval_values() -> Mapping[str, Setting]:
    """Intervals by the name of their value under ``settings.intervals``."""
    return {value_name(one.spelling.variable.removesuffix("_INTERVAL")): one for one in INTERVALS.values()}


def values_file() -> str:
    """``values.yaml`` with a fresh end."""
    kept, marker, _ = (CHART / "values.yaml").read_text(encoding="utf-8").partition("\nsettings:\n")
    return kept + marker + "\n".join(_values_lines()) + "\n"


def _values_lines() -> Iterator[str]:
    for name, one in settings_values().items():
        yield from _value(name, _described(one), "null", 2)
    yield from _value("enableDRA", _ENABLE_DRA, "false", 2)
    yield "  # Feature gates."
    yield "  featureGates:"
    for gate in FeatureGate:
        lean, karpenter = (_gate_default(gate, profile) for profile in Profile)
        differs = f" Default: {lean} (profile karpenter: {karpenter})." if lean != karpenter else ""
        yield from _value(gate_value_name(gate), f"Gate {gate}.{differs}", "null" if differs else lean, 4)
    yield "  # Feature gates of the AWS provider."
    yield "  awsFeatureGates:"
    for aws_gate in AWS_GATES:
        is_derived = aws_gate in _DEVICE_GATES
        meaning = f"Gate {aws_gate}." + (
            " True counts device claims, whatever ignoreDRARequests says." if is_derived else ""
        )
        yield from _value(gate_value_name(aws_gate), meaning, "null" if is_derived else "false", 4)
    yield "  # How often work is repeated. Change them in an emergency only."
    yield "  intervals:"
    for name, one in interval_values().items():
        yield from _value(name, _described(one), "null", 4)


def _gate_default(gate: str, profile: Profile) -> str:
    """A gate without a value, as the process has it. Gates of the AWS provider are all off."""
    return "true" if gate in parse_feature_gates(SETTINGS["feature_gates"].default_in(profile)).enabled else "false"


def _value(name: str, meaning: str, default: str, indent: int) -> Iterator[str]:
    yield f"{' ' * indent}# {meaning}"
    yield f"{' ' * indent}{name}: {default}"


def _described(one: Setting) -> str:
    lean, karpenter = (one.default_in(profile) for profile in Profile)
    other = f" (profile karpenter: {karpenter})" if karpenter != lean else ""
    default = f" Default: {lean}{other}." if lean else ""
    return f"{one.help}{default}"


def schema_file() -> str:
    """``values.schema.json`` with fresh settings."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    settings = schema["properties"]["settings"]
    settings["properties"] = {
        **{name: schema_of(one) for name, one in settings_values().items()},
        "enableDRA": _GATE,
        "featureGates": _object({gate_value_name(gate): _GATE for gate in FeatureGate} | _OLD_GATES),
        "awsFeatureGates": _object({gate_value_name(gate): _GATE for gate in AWS_GATES}),
        "intervals": _object({name: schema_of(one) for name, one in interval_values().items()}),
        **{name: {} for name in _old_values_below("settings")},
    }
    return json.dumps(schema, indent=2) + "\n"


_GATE: Json = {"enum": [True, False, "true", "false", None]}
_OLD_GATES: Json = {"drift": {}, "driftEnabled": {}}


def _object(properties: Mapping[str, object]) -> Json:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _old_values_below(parent: str) -> list[str]:
    """Keys under a value that older charts had and ours accepts with a notice."""
    paths = [str(one["old"]).split(".") for one in old_values()]
    known = {*settings_values(), "featureGates"}
    return sorted({path[1] for path in paths if path[0] == parent and len(path) > 1} - known)


def old_values() -> list[Mapping[str, object]]:
    """Value names of older charts, with what stands for them now."""
    read = yaml.safe_load((CHART / "files" / "old-values.yaml").read_text(encoding="utf-8"))
    return cast(list[Mapping[str, object]], read["values"])


def schema_of(one: Setting) -> Json:
    """Which values of a setting Helm accepts. Null and the empty text mean the default, and templates are read later."""
    metavar, expected = one.declaration.kind.metavar, one.declaration.kind.expected
    if metavar == "true|false":
        return {"enum": [True, False, "true", "false", "", None]}
    if metavar in ("NUMBER", "USD", "RATIO"):
        whole = "whole" in expected
        number = {"type": "integer" if whole else "number", "minimum": 1 if "positive" in expected else 0}
        return {"anyOf": [number, _text(r"[0-9]+" if whole else r"[0-9]+(\.[0-9]+)?"), {"type": "null"}]}
    if metavar == "SHARE":
        share = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        return {"anyOf": [share, _text(r"off|0?\.[0-9]+|1"), {"type": "null"}]}
    if metavar == "DURATION":
        return {"anyOf": [{"enum": [0, None]}, _text(_DURATION)]}
    if "|" in metavar:
        return {"enum": [*metavar.split("|"), "", None]}
    return {"type": ["string", "null", *_STRUCTURED.get(one.name, ())]}


_STRUCTURED = {"scheduler_config": ("object",)}


def _text(pattern: str) -> Json:
    return {"type": "string", "pattern": f"^({pattern}|{_TEMPLATED})?$"}


def template_file() -> str:
    """The template that maps values to environment variables."""
    return "\n".join(_template_lines()) + "\n"


def _template_lines() -> Iterator[str]:
    yield "{{- /* Written by `make charts` from the declarations of the settings: environment variable and value. */}}"
    yield '{{- define "karpenter.variablesOfSettings" -}}'
    for name, one in settings_values().items():
        yield f"{one.spelling.variable}: {name}"
    yield "{{- end }}"
    yield '{{- define "karpenter.variablesOfIntervals" -}}'
    for name, one in interval_values().items():
        yield f"{one.spelling.variable}: {name}"
    yield "{{- end }}"
    for title, gates in (("gates", tuple(FeatureGate)), ("awsGates", AWS_GATES)):
        yield f'{{{{- define "karpenter.{title}" -}}}}'
        yield from map(_gate_line, gates)
        yield "{{- end }}"


def _gate_line(gate: str) -> str:
    """A gate with its default in each profile."""
    lean, karpenter = (_gate_default(gate, profile) for profile in Profile)
    return f"- {{gate: {gate}, value: {gate_value_name(gate)}, lean: {lean}, karpenter: {karpenter}}}"


def readme_file(chart: Path) -> str:
    """``README.md`` of a chart, with its tables of values."""
    kept, marker, _ = (chart / "README.md").read_text(encoding="utf-8").partition("\n## Values\n")
    return kept + marker + "\n" + "\n".join(_readme_lines(chart)) + "\n"


def _readme_lines(chart: Path) -> Iterator[str]:
    yield "Written by `make charts` from `values.yaml`.\n"
    yield "| value | default | meaning |"
    yield "|---|---|---|"
    for path, default, meaning in values_with_comments(chart / "values.yaml"):
        shown = f"`{default}`" if default else ""
        yield f"| `{path}` | {shown} | {meaning.replace('|', chr(92) + '|')} |"
    if chart == CHART:
        yield ""
        yield "## Values of older charts\n"
        yield "They are accepted, and the notes after an installation name those you use.\n"
        yield "| old value | use instead |"
        yield "|---|---|"
        for one in old_values():
            instead = f"`{one['new']}`" if "new" in one else one["note"]
            yield f"| `{one['old']}` | {instead} |"


def values_with_comments(file: Path) -> Iterator[tuple[str, str, str]]:
    """Path, default and comment of every value that has a comment right above it."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    root = yaml.compose(text)
    if isinstance(root, yaml.MappingNode):
        yield from _commented("", root, lines)


def _commented(path: str, node: yaml.MappingNode, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        place = f"{path}.{key.value}" if path else key.value
        meaning = _comment_above(lines, key.start_mark.line)
        nested = isinstance(value, yaml.MappingNode) and any(
            _comment_above(lines, child.start_mark.line) for child, _ in value.value
        )
        if meaning and not nested:
            yield place, _one_line(value), meaning
        if nested:
            yield from _commented(place, value, lines)


def _comment_above(lines: list[str], number: int) -> str:
    match = re.fullmatch(r" *# (.*)", lines[number - 1]) if number else None
    return match[1] if match else ""


def _one_line(node: yaml.Node) -> str:
    value = yaml.SafeLoader("").construct_document(node)
    return "" if value in (None, "") else json.dumps(value) if not isinstance(value, str) else value


def definition_files() -> Mapping[str, str]:
    """The CustomResourceDefinitions, each under the name of its file."""
    documents = [document.lstrip() for document in re.split(r"^---$", crds.to_yaml(), flags=re.MULTILINE)]
    named = {str(yaml.load(text, yaml.CSafeLoader)["metadata"]["name"]): text for text in documents if text.strip()}
    return {f"{name}.yaml": text for name, text in named.items()}


def files() -> Mapping[Path, str]:
    """Every file this program writes, with its text."""
    return {
        CHART / "values.yaml": values_file(),
        CHART / "values.schema.json": schema_file(),
        CHART / "templates" / "_settings.tpl": template_file(),
        CHART / "README.md": readme_file(CHART),
        CHART.parent / "karpenter-crd" / "README.md": readme_file(CHART.parent / "karpenter-crd"),
        **{folder / name: text for folder in DEFINITIONS for name, text in definition_files().items()},
    }


def unwanted_files() -> list[Path]:
    """Definitions of kinds that are gone."""
    written = files().keys()
    return [file for folder in DEFINITIONS for file in sorted(folder.glob("*.yaml")) if file not in written]


def write() -> None:
    """Write every file; ``values.yaml`` before what is derived from it."""
    (CHART / "values.yaml").write_text(values_file(), encoding="utf-8")
    for file, text in files().items():
        file.write_text(text, encoding="utf-8")
    for file in unwanted_files():
        file.unlink()


if __name__ == "__main__":
    write()
