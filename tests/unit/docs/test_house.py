"""The layout and the words of the code: names are unique, the glossary's words are used, documents name files that exist."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "karpenter"
MODULES = sorted(SOURCE.rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]
DOCUMENTS += sorted((ROOT / "docs" / "design").glob("*.md"))
MAX_LINES = 500
#: Modules still longer, with the length they may not exceed. They may only shrink; an entry goes when its module is short enough.
STILL_LONGER = {}
#: Words that docs/glossary.md replaced; as whole words of class, function and module names.
REPLACED = frozenset(
    {"kin", "kins", "face", "faces", "company", "companies", "shop", "shops", "seat", "seats", "regret", "regrets"}
    | {"undertaking", "undertakings", "happening", "happenings", "culprit", "culprits", "herald", "heralds", "ladder"}
    | {
        "wares",
        "complaints",
        "deaths",
        "patient",
        "steadiness",
        "founding",
        "settling",
        "whim",
        "crowds",
        "tastes",
        "desks",
    }
)


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def _definitions(module: Path) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _words(name: str) -> set[str]:
    return {word.lower() for part in name.split("_") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)}


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in _tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(module.relative_to(SOURCE)))
    assert {name: place for name, place in places.items() if len(place) > 1} == {}


def test_no_two_public_modules_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        if not module.stem.startswith("_"):
            places[module.stem].append(str(module.relative_to(SOURCE)))
    assert {name: place for name, place in places.items() if len(place) > 1} == {}


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    lengths = {str(module.relative_to(SOURCE)): len(module.read_text().splitlines()) for module in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > STILL_LONGER.get(name, MAX_LINES)} == {}
    assert [name for name in STILL_LONGER if lengths.get(name, 0) <= MAX_LINES] == [], (
        "short enough: take it off the list"
    )


def test_names_use_the_words_of_the_glossary() -> None:
    actual = [
        f"{module.relative_to(SOURCE)}: {node.name}"
        for module in MODULES
        for node in _definitions(module)
        if _words(node.name) & REPLACED
    ]
    actual += [str(module.relative_to(SOURCE)) for module in MODULES if _words(module.stem) & REPLACED]
    assert actual == []


def test_every_module_says_what_belongs_in_it() -> None:
    silent = [str(module.relative_to(SOURCE)) for module in MODULES if "TODO" in (_docstring(module) or "TODO")]
    assert silent == []


def _docstring(module: Path) -> str | None:
    return ast.get_docstring(_tree(module))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_packages_named_in_a_document_exist(document: Path) -> None:
    named = re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*(?:\.py|/))`", document.read_text())
    existing = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*")} | {path.name for path in SOURCE.rglob("*")}
    missing = [name for name in named if name.rstrip("/") not in existing and not _ends_somewhere(name.rstrip("/"))]
    assert missing == []


def _ends_somewhere(name: str) -> bool:
    return (ROOT / name).exists() or any(str(path).endswith(f"/{name}") for path in SOURCE.rglob("*"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


#: Names in prose that are not ours: of Kubernetes, AWS, operating systems and libraries, and examples of what users write.
FOREIGN_NAMES = {
    *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_DIR", "M_ARENA_MAX", "grep"),
    *(
        "KubeSchedulerConfiguration",
        "PodList",
        "allocationMode",
        "distinctAttribute",
        "lastScaleTime",
        "provideClusterInfo",
    ),
    *("spec.schedulingGroup", "BilledCost", "Client.InvalidKMSKey.InvalidState", "UnsupportedOperation", "v20250501"),
    *("pandas.DataFrame", "sqlite3.OperationalError"),
    *("BOOLEAN", "ephemeral_storage", "maxEvents", "requirments", "weekends", "when_empty_or_underutilized"),
}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_NAME_IN_PROSE = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")


def _prose_and_code(module: Path) -> tuple[str, str]:
    """Docstrings and comment lines of a module, and the rest of its text."""
    lines = module.read_text().splitlines()
    prose_lines = {number for number, line in enumerate(lines) if line.lstrip().startswith("#")}
    for node in (_tree(module), *_definitions(module)):
        if ast.get_docstring(node, clean=False) is not None:
            prose_lines |= set(range(node.body[0].lineno - 1, node.body[0].end_lineno or 0))
    prose = "\n".join(line for number, line in enumerate(lines) if number in prose_lines)
    return prose, "\n".join(line for number, line in enumerate(lines) if number not in prose_lines)


def test_names_in_docstrings_and_comments_exist_in_the_code() -> None:
    """A class, function or parameter that is renamed is renamed in prose, too: `Raises X` names an exception there is."""
    parts = {module: _prose_and_code(module) for module in MODULES}
    known = {name for _, code in parts.values() for name in _IDENTIFIER.findall(code)}
    known |= {"py", *(part for module in MODULES for part in module.relative_to(SOURCE).with_suffix("").parts)}
    stale = [
        f"{module.relative_to(SOURCE)}: {name}"
        for module, (prose, _) in parts.items()
        for name in _NAME_IN_PROSE.findall(prose)
        if name not in FOREIGN_NAMES and not known.issuperset(_IDENTIFIER.findall(name))
    ]
    assert stale == [], "\n".join(stale)
