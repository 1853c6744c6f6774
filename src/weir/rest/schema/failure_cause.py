"""How an operation that failed is answered: as Flink answers it.

Flink's clients read three texts, of which they show the third: a Java object. It is of Flink's own
class ``SerializedThrowable``, written here in Java's serialization format (Java Object
Serialization Specification, chapter 6): a stream of class descriptions, from the class to
``Throwable``, and of their fields, the other way round.
"""

from __future__ import annotations

import base64
import struct

import msgspec

from weir.errors import WeirError
from weir.rest.schema.base import Message

_STREAM = b"\xac\xed\x00\x05"
_NULL, _OBJECT, _CLASS, _STRING, _END, _LONG_STRING = b"p", b"s", b"r", b"t", b"x", b"|"
_SERIALIZABLE, _WITH_END = b"\x02", b"\x03"
_TEXT, _BYTES = ("L", "Ljava/lang/String;"), ("[", "[B")
#: The longest text with a length of two bytes.
_SHORT_MAX = 0xFFFF


class FailureCause(Message, frozen=True, kw_only=True, rename="kebab"):
    """Why an operation failed. Flink's clients show the third field."""

    #: The name of the error's class.
    error_class: str = msgspec.field(name="class")
    #: The sentence.
    stack_trace: str
    #: The same as a Java object, in Base64.
    serialized_throwable: str


class Outcome(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How an operation ended; by itself that of one without a result."""

    #: Why it failed; missing if it did not.
    failure_cause: FailureCause | None = msgspec.field(name="failure-cause", default=None)


def failure_cause(error: BaseException) -> FailureCause:
    """What is answered for an error: its sentence, or the ``repr`` of one that is a bug."""
    name = type(error).__name__
    sentence = str(error) if isinstance(error, WeirError) else repr(error)
    return FailureCause(
        error_class=name,
        stack_trace=sentence,
        serialized_throwable=base64.b64encode(_throwable(name, sentence)).decode(),
    )


def _throwable(name: str, sentence: str) -> bytes:
    throwable = _described(
        "java.lang.Throwable",
        "d5c635273977b8cb",
        _WITH_END,
        ("cause", "L", "Ljava/lang/Throwable;"),
        ("detailMessage", *_TEXT),
        ("stackTrace", "[", "[Ljava/lang/StackTraceElement;"),
        ("suppressedExceptions", "L", "Ljava/util/List;"),
    )
    exception = _described("java.lang.Exception", "d0fd1f3e1a3b1cc4", _SERIALIZABLE)
    serialized = _described(
        "org.apache.flink.util.SerializedThrowable",
        f"{7284183123441947635:016x}",
        _SERIALIZABLE,
        ("fullStringifiedStackTrace", *_TEXT),
        ("originalErrorClassName", *_TEXT),
        ("serializedException", *_BYTES),
    )
    message = _NULL + _text(sentence) + _NULL + _NULL + _END
    own = _text(sentence) + _text(name) + _NULL
    return _STREAM + _OBJECT + serialized + exception + throwable + _NULL + message + own


def _described(name: str, uid: str, flags: bytes, *fields: tuple[str, str, str]) -> bytes:
    """A class with its fields, in the order of their names; its superclass follows."""
    written = [
        kind.encode() + _short(field) + _STRING + _short(signature)
        for field, kind, signature in fields
    ]
    head = _CLASS + _short(name) + bytes.fromhex(uid) + flags + struct.pack(">H", len(fields))
    return head + b"".join(written) + _END


def _text(text: str) -> bytes:
    data = _modified_utf8(text)
    if len(data) <= _SHORT_MAX:
        return _STRING + struct.pack(">H", len(data)) + data
    return _LONG_STRING + struct.pack(">Q", len(data)) + data


def _short(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def _modified_utf8(text: str) -> bytes:
    """Java's own UTF-8: of UTF-16's units, and without zero bytes."""
    units = struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass"))
    return b"".join(
        b"\xc0\x80" if not unit else chr(unit).encode("utf-8", "surrogatepass") for (unit,) in units
    )
