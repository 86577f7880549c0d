"""How ``karpenter top`` shows nodes: the options of eks-node-viewer, by the same names, and its file of defaults (OPS-804)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from karpenter.cli.terminal import WrongInput
from karpenter.model.selectors import SelectorError, parse_selector
from karpenter.model.texts import why_unreadable

DEFAULTS_FILE = ".eks-node-viewer"
_KEYS = ("node-selector", "node-sort", "resources", "extra-labels", "disable-pricing", "style")
#: Options of eks-node-viewer that name the cluster or one of its own features; kubeconfig and context are options here, too.
_FOREIGN_KEYS = frozenset({"context", "kubeconfig", "attribution", "v"})
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class ViewerStyle:
    """Colors of bars, as ``#rrggbb``: above 90 %, above 60 %, and below (OPS-800: a full node is good)."""

    good: str = "#04b575"
    fair: str = "#d7af00"
    bad: str = "#ff5f5f"

    def color(self, share: float) -> str:
        """The color for a share of 0 to 1."""
        return self.good if share > 0.9 else self.fair if share > 0.6 else self.bad


@dataclass(frozen=True)
class ViewerOptions:
    """What to show of nodes.

    ``node_selector``: label selector, empty for all nodes. ``sort_label``: ``creation`` or a label. ``extra_labels``: further
    columns. ``shows_prices``: False leaves out everything in USD.
    """

    node_selector: str = ""
    sort_label: str = "creation"
    descending: bool = True
    resources: tuple[str, ...] = ("cpu", "memory")
    extra_labels: tuple[str, ...] = ()
    shows_prices: bool = True
    style: ViewerStyle = ViewerStyle()


def viewer_options(given: Mapping[str, str | None], defaults_file: Path) -> ViewerOptions:
    """The options from flags, by name, None where not given; then from the file of defaults. Raises ``WrongInput``."""
    texts = dict(_file_defaults(defaults_file))
    texts |= {f"--{key}": (key, text) for key, text in given.items() if text is not None}
    options = ViewerOptions()
    for source, (key, text) in texts.items():
        if source.startswith("--") or f"--{key}" not in texts:
            options = _with_option(options, key, text.strip(), source)
    return options


def _file_defaults(path: Path) -> Mapping[str, tuple[str, str]]:
    """``key=value`` lines by where they stand; comments begin with ``#``. A file that is not there has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInput(f"{path}: {why_unreadable(error)}") from None
    defaults: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(lines, 1):
        key, separator, text = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#") or key in _FOREIGN_KEYS:
            continue
        if not separator or key not in _KEYS:
            raise WrongInput(
                f"{path}:{number}: {key!r} is no option; expected KEY=VALUE with one of {', '.join(_KEYS)}"
            )
        defaults[f"{path}:{number}: {key}"] = (key, text)
    return defaults


def _with_option(options: ViewerOptions, key: str, text: str, source: str) -> ViewerOptions:
    match key:
        case "node-selector":
            return replace(options, node_selector=_selector(text, source))
        case "node-sort":
            return _sorted_by(options, text, source)
        case "resources":
            return replace(options, resources=_names(text) or options.resources)
        case "extra-labels":
            return replace(options, extra_labels=_names(text))
        case "disable-pricing":
            return replace(options, shows_prices=not _truth(text, source))
        case _:
            return replace(options, style=_style(text, source))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _selector(text: str, source: str) -> str:
    try:
        parse_selector(text)
    except SelectorError as error:
        raise WrongInput(f"{source}: {error}") from None
    return text


def _sorted_by(options: ViewerOptions, text: str, source: str) -> ViewerOptions:
    """``creation=dsc``, ``creation=asc`` or a label with either; without an order it is ascending."""
    label, separator, order = text.rpartition("=")
    if not separator:
        label, order = text, "asc"
    if not label or order not in ("asc", "dsc", "desc"):
        raise WrongInput(f"{source}: {text!r} is no order; expected LABEL=asc or LABEL=dsc, such as creation=dsc")
    return replace(options, sort_label=label, descending=order != "asc")


def _truth(text: str, source: str) -> bool:
    if text.lower() not in ("", "true", "false"):
        raise WrongInput(f"{source}: {text!r} is neither true nor false")
    return text.lower() != "false"


def _style(text: str, source: str) -> ViewerStyle:
    colors = _names(text)
    if len(colors) != len(fields(ViewerStyle)) or not all(map(_COLOR.fullmatch, colors)):
        raise WrongInput(f"{source}: {text!r} are no colors; expected GOOD,FAIR,BAD, such as #04b575,#d7af00,#ff5f5f")
    return ViewerStyle(*colors)
