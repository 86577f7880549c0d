"""Frozen data as JSON and back, by the types of its fields.

``DataCodec`` reads the type hints of dataclasses once and derives both directions from them, so that a field added to the data
is part of its file without a line of code here. msgspec alone would be faster, but it cannot read a union of dataclasses,
mappings by tuples or our own classes. Wire structs inside the data are left to msgspec, which handles nearly all of the bytes.

The output is a function of the data: sets are sorted by their JSON, mappings keep their order, members that have their default
are left out. Members of a union of dataclasses carry the name of their class as ``kind``. Cost: linear in the data, some
microseconds for each value that is not a wire struct.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from karpenter.model.texts import decoding_text

T = TypeVar("T")

#: What JSON can say; wire structs stand for the objects msgspec makes of them.
Json = Any
_KIND = "kind"
_SCALARS = (bool, int, str)
_encoder = msgspec.json.Encoder()


class DataError(ValueError):
    """The JSON does not describe the data. The text names the place and what is wrong there."""

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def __str__(self) -> str:
        place = "".join(self.path).removeprefix(".")
        return f"{place}: {self.message}" if place else self.message

    def within(self, step: str) -> DataError:
        """The same error, seen from the value around."""
        return DataError(self.message, (step, *self.path))


@dataclass(frozen=True)
class Form:
    """How values of one type are written and read."""

    encode: Callable[[Any], Json]
    decode: Callable[[Json], Any]


class DataCodec:
    """Writes and reads data. ``special`` holds the forms of types that are written in a way of their own."""

    def __init__(self, special: Mapping[Any, Form]) -> None:
        self._forms: dict[object, Form] = dict(special)

    def encode(self, value: object, hint: object) -> Json:
        """The value as JSON."""
        return self._form(hint).encode(value)

    def decode(self, data: Json, hint: type[T]) -> T:
        """The value the JSON describes. Raises `DataError`."""
        return cast(T, self._form(hint).decode(data))

    def _form(self, hint: object) -> Form:
        form = self._forms.get(hint)
        if form is None:
            form = self._forms[hint] = self._derive(hint)
        return form

    def _derive(self, hint: object) -> Form:
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._union(get_args(hint))
        if origin is tuple:
            return self._tuple(get_args(hint))
        if origin is frozenset:
            return self._frozenset(get_args(hint)[0])
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(*get_args(hint))
        if isinstance(hint, type):
            return self._class(hint)
        raise TypeError(f"no JSON form for {hint!r}")

    def _class(self, cls: type) -> Form:
        if cls in _SCALARS:
            return Form(_same, _checked(cls))
        if cls in _FORMS:
            return _FORMS[cls]
        if issubclass(cls, Enum):
            return Form(lambda value: value.value, lambda data: _converted(cls, data))
        if issubclass(cls, msgspec.Struct):
            return Form(_same, lambda data: _struct(cls, data))
        if is_dataclass(cls) or hasattr(cls, "_field_defaults"):
            return _RecordForm(cls, self._form).form
        raise TypeError(f"no JSON form for {cls!r}")

    def _tuple(self, arguments: tuple[Any, ...]) -> Form:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._list(arguments[0], tuple)
        forms = [self._form(argument) for argument in arguments]

        def decode(data: Json) -> tuple[object, ...]:
            if not isinstance(data, list) or len(data) != len(forms):
                raise DataError(f"expected an array of {len(forms)}")
            return tuple(_at(f"[{at}]", form.decode, data[at]) for at, form in enumerate(forms))

        return Form(lambda value: [form.encode(part) for form, part in zip(forms, value, strict=True)], decode)

    def _list(self, hint: object, collect: Callable[[list[Any]], object]) -> Form:
        form = self._form(hint)

        def decode(data: Json) -> object:
            if not isinstance(data, list):
                raise DataError("expected an array")
            return collect([_at(f"[{at}]", form.decode, part) for at, part in enumerate(data)])

        return Form(lambda value: [form.encode(part) for part in value], decode)

    def _frozenset(self, hint: object) -> Form:
        form = self._list(hint, frozenset)
        return Form(lambda value: sorted(form.encode(value), key=_encoder.encode), form.decode)

    def _mapping(self, key_hint: object, value_hint: object) -> Form:
        if key_hint is not str:
            pairs = self._list(tuple[key_hint, value_hint], dict)  # type: ignore[valid-type]
            return Form(lambda value: pairs.encode(value.items()), pairs.decode)
        form = self._form(value_hint)

        def decode(data: Json) -> dict[str, object]:
            if not isinstance(data, dict):
                raise DataError("expected an object")
            return {key: _at(f".{key}", form.decode, value) for key, value in data.items()}

        return Form(lambda value: {key: form.encode(part) for key, part in value.items()}, decode)

    def _union(self, members: tuple[Any, ...]) -> Form:
        others = [member for member in members if member is not types.NoneType]
        form = self._form(others[0]) if len(others) == 1 else self._choice(others)
        if len(others) == len(members):
            return form
        return Form(
            lambda value: None if value is None else form.encode(value),
            lambda data: None if data is None else form.decode(data),
        )

    def _choice(self, members: list[type]) -> Form:
        if not all(map(is_dataclass, members)):
            raise TypeError(f"no JSON form for a union of {members!r}")
        forms = {member.__name__: self._form(member) for member in members}

        def decode(data: Json) -> object:
            kind = data.get(_KIND) if isinstance(data, dict) else None
            if kind not in forms:
                raise DataError(f"expected an object with one of these kinds: {', '.join(forms)}")
            return forms[kind].decode({key: value for key, value in data.items() if key != _KIND})

        return Form(lambda value: {_KIND: type(value).__name__, **forms[type(value).__name__].encode(value)}, decode)


class SharedValues:
    """A table of values that occur often; elsewhere their position stands for them. Equal values have one row."""

    def __init__(self, codec: DataCodec, hint: Any, rows: Sequence[Json] = ()) -> None:
        self._codec = codec
        self._hint = hint
        self.rows: list[Json] = list(rows)
        self._values = [codec.decode(row, hint) for row in rows]
        self._positions: dict[bytes, int] = {}
        self._by_identity: dict[int, int] = {}
        self.form = Form(self._encode, self._decode)

    def _encode(self, value: object) -> Json:
        position = self._by_identity.get(id(value))
        if position is None:
            row = self._codec.encode(value, self._hint)
            position = self._positions.setdefault(_encoder.encode(row), len(self.rows))
            if position == len(self.rows):
                self.rows.append(row)
            self._by_identity[id(value)] = position
            self._values.append(value)  # an identity means a value only while the value is alive
        return position

    def _decode(self, data: Json) -> object:
        if type(data) is not int or not 0 <= data < len(self._values):
            raise DataError(f"there is no row {data!r}")
        return self._values[data]


class _RecordForm:
    """The form of a dataclass or a named tuple: an object of the fields that differ from their default.

    Fields are read when the first value comes: types may contain themselves.
    """

    def __init__(self, cls: type, form_of: Callable[[object], Form]) -> None:
        self._cls = cls
        self._form_of = form_of
        self._fields: list[tuple[str, str, Form, object]] | None = None
        self.form = Form(self._encode, self._decode)

    def _known_fields(self) -> list[tuple[str, str, Form, object]]:
        if self._fields is None:
            self._fields = [
                (name, member, self._form_of(hint), default) for name, member, hint, default in _declared(self._cls)
            ]
        return self._fields

    def _encode(self, value: object) -> Json:
        members = {}
        for name, member, form, default in self._known_fields():
            part = getattr(value, name)
            if default is MISSING or part != default:
                members[member] = form.encode(part)
        return members

    def _decode(self, data: Json) -> object:
        if not isinstance(data, dict):
            raise DataError(f"expected an object ({self._cls.__name__})")
        given: dict[str, object] = {}
        for name, member, form, default in self._known_fields():
            if member in data:
                given[name] = _at(f".{member}", form.decode, data[member])
            elif default is MISSING:
                raise DataError(f"{self._cls.__name__} lacks {member}")
        if len(given) < len(data):
            unknown = sorted(data.keys() - {member for _, member, _, _ in self._known_fields()})
            raise DataError(f"{self._cls.__name__} has no {', '.join(unknown)}")
        return self._cls(**given)


@cache
def _declared(cls: type) -> tuple[tuple[str, str, object, object], ...]:
    """Name, name in JSON, type and default of each field. Every codec asks, and evaluating annotations takes milliseconds."""
    hints = get_type_hints(cls)
    return tuple((name, _camel(name), hints[name], default) for name, default in _defaults(cls).items())


def _defaults(cls: type) -> dict[str, object]:
    """The fields of a class with their defaults, ``MISSING`` where there is none."""
    if not is_dataclass(cls):
        named = cast(Any, cls)
        return {name: named._field_defaults.get(name, MISSING) for name in named._fields}
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(cls)
        if field.init
    }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _at(step: str, decode: Callable[[Json], object], data: Json) -> object:
    try:
        return decode(data)
    except DataError as error:
        raise error.within(step) from None


def _same(value: object) -> Json:
    return value


def _checked(cls: type) -> Callable[[Json], object]:
    def decode(data: Json) -> object:
        if type(data) is not cls:
            raise DataError(f"expected {cls.__name__}, got {type(data).__name__}")
        return data

    return decode


def _converted(convert: Callable[[Any], object], data: Json) -> object:
    try:
        return convert(data)
    except (TypeError, ValueError) as error:
        raise DataError(str(error)) from None


def _struct(cls: type, data: Json) -> object:
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        raise DataError(decoding_text(error)) from None


def _float(value: float) -> Json:
    """JSON has no infinity: such a number is written as text."""
    return float(value) if math.isfinite(value) else str(value)


_FORMS = {
    float: Form(_float, lambda data: _converted(float, data)),
    datetime: Form(datetime.isoformat, lambda data: _converted(datetime.fromisoformat, data)),
    timedelta: Form(
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda data: _converted(lambda parts: timedelta(*parts), data),
    ),
    Fraction: Form(str, lambda data: _converted(Fraction, data)),
}
