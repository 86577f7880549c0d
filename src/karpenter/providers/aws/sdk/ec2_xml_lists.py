"""EC2's lists, decoded from their XML without the library's detour.

botocore makes dictionaries of everything that stands in an answer, by walking its service model in Python; of an instance type
that is ten times what anybody here reads. For a list, only what our shapes name is read: the XML is parsed in C, then walked
along a plan made once from the shapes and from the wire names of botocore's model. A refresh of types, prices and offerings costs
a third of the CPU it costs with the library's decoder. Refusals, and calls that are no lists, are left to the library.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

import msgspec
from botocore.model import ListShape, OperationModel, Shape, StructureShape

#: What ``msgspec.convert`` makes values of.
Raw = object
_Reader = Callable[[Element], Raw]
_FIRST_ERROR_STATUS = 300
_TOKEN, _WIRE_TOKEN = "NextToken", "nextToken"
#: What the library decodes instead.
_EMPTY_ANSWER = b"<Answer/>"


class ListOperation(Protocol):
    """An operation whose answer is a list."""

    @property
    def member(self) -> str:
        """The list's name in the answer."""

    @property
    def type(self) -> object:
        """``tuple[X, ...]``"""


class _Field(NamedTuple):
    """A child that is read: the name our shape has for it, and how."""

    name: str
    read: _Reader


class _StructureReader:
    """Reads an element with children of different names."""

    def __init__(self, fields: Mapping[str, _Field]) -> None:
        self._fields = fields
        #: By the tag as it comes, with its namespace; filled as tags are met.
        self._by_tag: dict[str, _Field | None] = {}

    def __call__(self, element: Element) -> Raw:
        found: dict[str, Raw] = {}
        known = self._by_tag
        for child in element:
            tag = child.tag
            try:
                field = known[tag]
            except KeyError:
                field = known[tag] = self._fields.get(tag.rpartition("}")[2])
            if field is not None:
                found[field.name] = field.read(child)
        return found


def _list_reader(read: _Reader) -> _Reader:
    """Reads an element whose children are the entries of a list."""
    return lambda element: [read(child) for child in element]


def _read_text(element: Element) -> Raw:
    return element.text or ""


class Ec2ListDecoder:
    """Decodes answers of lists, by the names of their operations. Its ``before_parse`` is a handler of botocore's event."""

    def __init__(self, operations: Mapping[str, ListOperation]) -> None:
        self._operations = operations
        self._readers: dict[str, _StructureReader] = {}

    def before_parse(
        self,
        operation_model: OperationModel,
        response_dict: dict[str, object],
        customized_response_dict: dict[str, object],
        **rest: object,
    ) -> None:
        """Put the list and its token into the answer, and leave nothing to decode. Answers that cannot be read are left alone."""
        wanted = self._operations.get(operation_model.name)
        if wanted is None or cast(int, response_dict["status_code"]) >= _FIRST_ERROR_STATUS:
            return
        try:
            root = ET.fromstring(cast(bytes, response_dict["body"]))
        except ET.ParseError:
            return
        customized_response_dict |= cast(dict[str, Raw], self._reader_of(operation_model, wanted)(root))
        response_dict["body"] = _EMPTY_ANSWER

    def _reader_of(self, model: OperationModel, operation: ListOperation) -> _StructureReader:
        if model.name not in self._readers:
            members = cast(StructureShape, model.output_shape).members
            shape = members[operation.member]
            entries = _Field(operation.member, _reader_for(shape, operation.type))
            fields = {_wire_name(operation.member, shape): entries, _WIRE_TOKEN: _Field(_TOKEN, _read_text)}
            self._readers[model.name] = _StructureReader(fields)
        return self._readers[model.name]


def _reader_for(shape: Shape, type_: object) -> _Reader:
    """How an element of a shape is read where our type is wanted of it."""
    type_ = _without_none(type_)
    if isinstance(shape, ListShape):
        return _list_reader(_reader_for(shape.member, typing.get_args(type_)[0]))
    if isinstance(shape, StructureShape) and isinstance(type_, type):
        return _structure_reader(shape, type_)
    return _read_text


def _structure_reader(shape: StructureShape, type_: type) -> _StructureReader:
    types_of = typing.get_type_hints(type_)
    known = {item.encode_name: types_of[item.name] for item in msgspec.structs.fields(type_)}
    return _StructureReader(
        {
            _wire_name(name, member): _Field(name, _reader_for(member, known[name]))
            for name, member in shape.members.items()
            if name in known
        }
    )


def _without_none(type_: object) -> object:
    """Of ``X | None``, X."""
    if isinstance(type_, types.UnionType):
        return next(item for item in typing.get_args(type_) if item is not type(None))
    return type_


def _wire_name(name: str, shape: Shape) -> str:
    return cast(str, shape.serialization.get("name", name))
