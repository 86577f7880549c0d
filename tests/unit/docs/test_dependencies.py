"""What ``pyproject.toml`` declares is what the code imports: no more, and nothing that comes with another package by chance."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Data of the standard library's zoneinfo, for images without a time zone database.
NEVER_IMPORTED = {"tzdata"}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_modules(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module


def imported_distributions() -> set[str]:
    top_level = {name.partition(".")[0] for name in imported_modules(ROOT / "src")}
    providers = packages_distributions()
    third_party = top_level - set(sys.stdlib_module_names) - {"karpenter"}
    return {normalised(providers[name][0]) for name in third_party}


def declared_distributions() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [
        *project["dependencies"],
        *(name for extra in project.get("optional-dependencies", {}).values() for name in extra),
    ]
    return {normalised(re.match(r"[\w.-]+", name)[0]) for name in names}


def test_every_import_is_declared_and_every_declaration_imported() -> None:
    assert imported_distributions() == declared_distributions() - NEVER_IMPORTED


def test_the_lock_file_names_no_other_host_than_the_public_index() -> None:
    hosts = set(re.findall(r"https?://([^/\"]*)", (ROOT / "uv.lock").read_text(encoding="utf-8")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
