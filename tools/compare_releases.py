"""What changed between two releases of Karpenter that users can see, and what of it our specification does not mention.

``make compare-releases OLD=v1.14.3 NEW=v1.15.0`` reads the public Go modules of both (core, and the AWS provider with
``--provider``). It compares fields of CRDs, settings, metrics, event reasons, keys of labels and annotations, operations of AWS
that need permissions, values of the chart and the rules of its roles. It reads facts by pattern, so the list is where to look,
not a proof that nothing else changed: read the release notes as well. ``docs/follow-a-release.md`` is the whole routine.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "docs/spec"
CORE, AWS = "sigs.k8s.io/karpenter", "github.com/aws/karpenter-provider-aws"
_SETTING = re.compile(r'fs\.\w*Var\w*\(&?[\w.]+, "([a-z0-9-]+)"(?:, "([A-Z0-9_]+)")?(.*)')
_METRIC_BLOCK = re.compile(r"Opts\{(.*?)\}", re.DOTALL)
_METRIC_NAME = re.compile(r'Name:\s+"(\w+)"')
_REASON = re.compile(r'^\s*\w+\s*=\s*"([A-Z]\w+)"', re.MULTILINE)
_EVENT_REASON = re.compile(r'Reason:\s+"([A-Z]\w+)"')
_KEY = re.compile(r'(?:\w*Group|apis\.\w+)\s*\+\s*"/([a-z0-9.-]+)"')
_OPERATION = re.compile(r"^\t([A-Z]\w+)\(context\.Context", re.MULTILINE)
_SCHEMA_FACTS = (
    "type",
    "enum",
    "default",
    "pattern",
    "maxLength",
    "minLength",
    "maximum",
    "minimum",
    "maxItems",
    "minItems",
)
_RULE_LINE = re.compile(
    r"^\s+- apiGroups:.*\n(?:\s+resources:.*\n)?(?:\s+resourceNames:.*\n)?\s+verbs:.*$", re.MULTILINE
)

_NOT_COVERED = " **not in docs/spec**"

#: Name of a fact to its value; equal values of both releases are no change.
Facts = Mapping[str, str]


@dataclass(frozen=True)
class Change:
    """A fact that one release has and the other has not, or has with another value (None: not there)."""

    name: str
    old: str | None
    new: str | None

    @property
    def verb(self) -> str:
        """What happened to it."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


def changes(old: Facts, new: Facts) -> list[Change]:
    """What differs, by name."""
    names = sorted({*old, *new})
    return [Change(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


# -- facts of a release ---------------------------------------------------------------------------------------------------


def crd_fields(module: Path) -> Facts:
    """Every field of the CRDs with what its schema says, and every CEL rule."""
    facts: dict[str, str] = {}
    for file in sorted((module / "pkg/apis/crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        kind = crd["spec"]["names"]["kind"]
        for version in crd["spec"]["versions"]:
            facts.update(_schema_facts(f"{kind}.{version['name']}", version["schema"]["openAPIV3Schema"]))
    return facts


def _schema_facts(path: str, schema: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    yield path, " ".join(f"{name}={schema[name]}" for name in _SCHEMA_FACTS if name in schema)
    rules = schema.get("x-kubernetes-validations")
    for rule in rules if isinstance(rules, list) else ():
        yield f"{path} rule {rule['rule']}", str(rule.get("message", ""))
    properties = schema.get("properties")
    for name, child in properties.items() if isinstance(properties, dict) else ():
        yield from _schema_facts(f"{path}.{name}", child)
    for name in ("items", "additionalProperties"):
        child = schema.get(name)
        if isinstance(child, dict):
            yield from _schema_facts(f"{path}[]", child)


def settings(module: Path) -> Facts:
    """Settings with the rest of their declaration, which has the default and the help."""
    text = (module / "pkg/operator/options/options.go").read_text()
    return {flag: " ".join(rest.split()) for flag, _, rest in _SETTING.findall(text)}


def metrics(module: Path) -> Facts:
    """Metrics by the name in the code (without the prefix of the subsystem), with the options they are declared with."""
    facts: dict[str, str] = {}
    for text in _go_texts(module):
        for block in _METRIC_BLOCK.findall(text):
            name = _METRIC_NAME.search(block)
            if name is not None and "Subsystem" in block:
                subsystem = re.search(r"Subsystem:\s+(\S+?),", block)
                facts[f"{subsystem.group(1) if subsystem else ''} {name.group(1)}"] = ""
    return facts


def event_reasons(module: Path) -> Facts:
    """Reasons of events."""
    reasons = {reason for text in _go_texts(module) for reason in _EVENT_REASON.findall(text)}
    file = module / "pkg/events/reason.go"
    if file.exists():
        reasons.update(_REASON.findall(file.read_text()))
    return dict.fromkeys(reasons, "")


def keys(module: Path) -> Facts:
    """Keys of labels, annotations, taints and finalizers, without their group."""
    found = {key for text in _go_texts(module, "pkg/apis") for key in _KEY.findall(text)}
    return dict.fromkeys(found, "")


def aws_operations(module: Path) -> Facts:
    """Operations of AWS that the provider calls; each needs a permission."""
    file = module / "pkg/aws/sdk.go"
    return dict.fromkeys(_OPERATION.findall(file.read_text()), "") if file.exists() else {}


def chart_values(module: Path) -> Facts:
    """Values of the chart with their defaults."""
    file = module / "charts/karpenter/values.yaml"
    return dict(_leaves("", yaml.safe_load(file.read_text()))) if file.exists() else {}


def _leaves(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), child)
    else:
        yield path, str(value)


def role_rules(module: Path) -> Facts:
    """Rules of the roles in the chart."""
    folder = module / "charts/karpenter/templates"
    rules = (rule for file in sorted(folder.glob("*role*.yaml")) for rule in _RULE_LINE.findall(file.read_text()))
    return {" ".join(rule.split()): "" for rule in rules}


def _go_texts(module: Path, under: str = "pkg") -> Iterator[str]:
    for file in sorted((module / under).rglob("*.go")):
        if not file.name.endswith("_test.go"):
            yield file.read_text()


#: What is compared, by the heading of the report.
FACTS: Mapping[str, Callable[[Path], Facts]] = {
    "CRD fields": crd_fields,
    "Settings": settings,
    "Metrics": metrics,
    "Event reasons": event_reasons,
    "Labels, annotations, taints": keys,
    "Operations of AWS": aws_operations,
    "Chart values": chart_values,
    "Roles": role_rules,
}


# -- the report -----------------------------------------------------------------------------------------------------------


def report(old: Path, new: Path, specification: str) -> Iterator[str]:
    """Lines of Markdown. A name that the specification does not have is marked."""
    for title, read in FACTS.items():
        found = changes(read(old), read(new))
        if not found:
            continue
        yield f"\n## {title}\n"
        for change in found:
            mark = _NOT_COVERED if change.new is not None and not is_covered(change.name, specification) else ""
            yield f"- {change.verb} `{change.name}`{_values_text(change)}{mark}"


def is_covered(name: str, specification: str) -> bool:
    """Whether the specification mentions a fact: a field by its own name, a metric by its name in the code, a role by all its
    resources.
    """
    resources = re.search(r"resources: \[(.*?)\]", name)
    if resources is not None:
        return all(word in specification for word in re.findall(r"[\w./-]+", resources.group(1)))
    word = re.split(r"[.\s]", name.partition(" rule ")[0].removesuffix("[]"))[-1]
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", specification) is not None


def _values_text(change: Change) -> str:
    if change.verb != "changed":
        return f": {change.new}" if change.new else ""
    return f": {change.old} → {change.new}"


def specification_text(folder: Path = SPEC) -> str:
    """Everything the specification says."""
    return "\n".join(file.read_text() for file in sorted(folder.rglob("*.md")))


def downloaded(name: str, version: str) -> Path:
    """The source of a module, from the module proxy."""
    import tempfile

    from controlplane.gobuild import GoModule

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "go.mod").write_text(f"module compared\n\ngo 1.26\n\nrequire {name} {version}\n")
        return GoModule("the comparison of releases", Path(folder), (1, 27)).dependency(name)


def main(arguments: Iterable[str]) -> int:
    """Print the report; 1 where something is not covered and ``--fail`` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="release, such as v1.14.3, or the folder of a module")
    parser.add_argument("new", help="release, such as v1.15.0, or the folder of a module")
    parser.add_argument("--provider", action="store_true", help="compare the AWS provider instead of the core")
    parser.add_argument("--fail", action="store_true", help="exit with 1 where the specification lacks something")
    options = parser.parse_args(list(arguments))
    name = AWS if options.provider else CORE
    old, new = (Path(one) if Path(one).is_dir() else downloaded(name, one) for one in (options.old, options.new))
    lines = list(report(old, new, specification_text()))
    count = sum(line.startswith("- ") for line in lines)
    missing = sum(_NOT_COVERED in line for line in lines)
    head, foot = f"# {name}: {options.old} to {options.new}", f"{count} changes, {missing} not in docs/spec"
    sys.stdout.write("\n".join((head, *lines, "", foot, "")))
    return 1 if missing and options.fail else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
