"""Builds the pages of the console from ``console-web/`` into the package: `make console-assets`.

The build is committed, so that neither the wheel nor its users need Node.js. ``SOURCES`` beside it has the hash of what it was
built from; a test compares it with the sources.
"""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
WEB = ROOT / "console-web"
ASSETS = ROOT / "src" / "karpenter" / "webconsole" / "assets"
HASH_FILE = ASSETS / "SOURCES"
#: Licenses of what is in the script.
LICENSES = {"preact": "LICENSE", "uplot": "LICENSE"}


def source_hash() -> str:
    """The hash of every file that the build depends on, with its path."""
    top = [
        WEB / name for name in ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.js")
    ]
    total = sha256()
    for path in sorted([*top, *(file for file in (WEB / "src").rglob("*") if file.is_file())]):
        total.update(f"{path.relative_to(WEB).as_posix()}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def built_hash() -> str:
    """The hash of the build itself."""
    total = sha256()
    for path in sorted(file for file in ASSETS.iterdir() if file != HASH_FILE):
        total.update(f"{path.name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def main() -> None:
    """Install exactly what the lock file names, check types, build."""
    subprocess.run(["npm", "ci", "--silent"], cwd=WEB, check=True)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=WEB, check=True)
    texts = [
        f"{name}\n\n{(WEB / 'node_modules' / name / file).read_text().strip()}\n" for name, file in LICENSES.items()
    ]
    (ASSETS / "LICENSES.txt").write_text("\n\n".join(texts), encoding="utf-8")
    HASH_FILE.write_text(f"sources {source_hash()}\nbuild {built_hash()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
