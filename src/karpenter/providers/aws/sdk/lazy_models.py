"""botocore's data files, of which only what is used is decoded.

botocore describes EC2 in 4 MB of JSON and all endpoints in 1.3 MB. This program uses a few operations of it and their shapes. So
a large object of a file is a dictionary whose members stay text until they are read. Documentation, which is half of the text, is
left out: botocore only makes docstrings of it. botocore's own files are read, whichever version is installed: nothing is copied
into this package, and nothing else can be missing.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import ItemsView, Iterator, ValuesView
from typing import Any

import msgspec
from botocore.loaders import JSONFileLoader
from botocore.model import ServiceModel
from botocore.session import Session

#: Values of fewer bytes are decoded as a whole.
_SMALL_BYTES = 4096

#: A member that is called so and is a text. Shapes may have a member of that name, which is an object.
_DOCUMENTATION = re.compile(rb'("documentation"\s*:\s*)"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_EXCEPTION = b'"exception"'

_Text = bytes | msgspec.Raw
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class LazyModelFiles(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    """Reads files as botocore does: the plain one, else the compressed one."""

    def load_file(self, file_path: str) -> Any:
        """The value in the file, whose name lacks its ending; None where there is no such file."""
        plain, compressed = f"{file_path}.json", f"{file_path}.json.gz"
        if os.path.isfile(plain):
            with open(plain, "rb") as file:
                return _decoded(_without_documentation(file.read()))
        if os.path.isfile(compressed):
            with gzip.open(compressed, "rb") as file:
                return _decoded(_without_documentation(file.read()))
        return None


def decode_models_lazily(session: Session) -> None:
    """Let the session decode its data files as this module does."""
    session.get_component("data_loader").file_loader = LazyModelFiles()


def find_error_shapes(model: ServiceModel) -> None:
    """Set which shapes of the model describe errors.

    To find out, it would decode and keep all of them at the first error: three thousand of EC2, none of which describes one.
    A botocore whose model is built otherwise finds them itself.
    """
    shapes = getattr(getattr(model, "_shape_resolver", None), "_shape_map", None)
    if not isinstance(shapes, _LazyObject) or "error_shapes" not in vars(type(model)):
        return
    texts = dict.items(shapes)  # past the decoding
    named = (name for name, text in texts if not isinstance(text, msgspec.Raw) or _EXCEPTION in bytes(text))
    error_shapes = [shape for shape in map(model.shape_for, named) if shape.metadata.get("exception", False)]
    model.__dict__["error_shapes"] = error_shapes  # as its cached property keeps them


class _LazyObject(dict[str, Any]):
    """An object whose members are decoded when they are read. Two threads may decode one member: both get an equal value."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, msgspec.Raw):
            value = self[name] = _decoded(value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The member, or the default."""
        return self[name] if name in self else default  # noqa: SIM401  # it would call itself

    # Copies of a dictionary take its members past ``__getitem__`` unless it has an iterator of its own.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # a view of another kind
        """All members, decoded."""
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view of another kind
        """All members, decoded."""
        return ValuesView(self)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a member and return it."""
        value = super().pop(name, *default)
        return _decoded(value) if isinstance(value, msgspec.Raw) else value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last member and return it with its name."""
        name = next(reversed(self))
        return name, self.pop(name)

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == other

    __hash__ = None  # as of every dictionary

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The member, made the default where it is missing."""
        super().setdefault(name, default)
        return self[name]


def _without_documentation(text: bytes) -> bytes:
    return _DOCUMENTATION.sub(rb'\1""', text)


def _decoded(text: _Text) -> Any:
    """The value of the JSON text; the members of a large one as they are read."""
    view = memoryview(text)
    if len(view) > _SMALL_BYTES:
        beginning = bytes(view[:64]).lstrip()[:1]
        if beginning == b"{":
            return _LazyObject(_decode_members(text))
        if beginning == b"[":
            return [_decoded(element) for element in _decode_elements(text)]
    return msgspec.json.decode(text)
