"""Parses configuration values: durations, numbers, choices and paths, in Flink's spellings.

A ``ValueType`` parses text and knows how to describe what it expects. Limits of a single value are
part of its type, so that a value out of range is refused on entry.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from weir.core.settings import RestartStrategyType, RetainExternalized
from weir.errors import ConfigurationError, StorageError
from weir.masking import masked
from weir.storage.paths import is_utf8, normalize

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

#: The minimum length of the REST server's token.
TOKEN_LENGTH_MIN = 16
#: 290 years: the range of clocks that count nanoseconds, and the limit of Python's timers.
_DURATION_MS_MAX = 2**63 // 10**6
#: As in Flink.
_INTEGER_MAX = 2**31 - 1
#: How much of an invalid value a message shows.
_SHOWN_CHARACTERS = 200

#: In place of a savepoint's path: the savepoint with which the job was stopped.
LATEST_SAVEPOINT = "latest"

#: Flink's ``CheckpointCoordinatorConfiguration.MINIMAL_CHECKPOINT_TIME``: the minimum interval and
#: timeout.
_CHECKPOINT_MS_MIN = 10


class RecoveryClaimMode(enum.Enum):
    """Who owns the snapshot that a new job is restored from (PROTOCOL P40)."""

    NO_CLAIM = "NO_CLAIM"
    CLAIM = "CLAIM"


class OnSigterm(enum.Enum):
    """What SIGTERM does to a running job."""

    #: Nothing is saved: the same command resumes from the newest completed checkpoint.
    SUSPEND = "suspend"
    SAVEPOINT = "savepoint"


class LogFormat(enum.Enum):
    """The form of a line of the log."""

    TEXT = "text"
    JSON = "json"


_UNITS_MS = {
    unit: factor
    for factor, units in (
        (1, ("ms", "milli", "millis", "millisecond", "milliseconds", "")),
        (1_000, ("s", "sec", "secs", "second", "seconds")),
        (60_000, ("m", "min", "mins", "minute", "minutes")),
        (3_600_000, ("h", "hour", "hours")),
        (86_400_000, ("d", "day", "days")),
    )
    for unit in units
}


_UNITS_BYTES = {
    unit: 1024**power
    for power, units in enumerate(
        (
            ("", "b", "bytes"),
            ("k", "kb", "kibibytes"),
            ("m", "mb", "mebibytes"),
            ("g", "gb", "gibibytes"),
            ("t", "tb", "tebibytes"),
        )
    )
    for unit in units
}


@dataclass(frozen=True)
class ValueType(Generic[T]):
    """How a value's text is parsed.

    ``parse`` raises ``ValueError``; ``expectation`` completes "must be ...".
    """

    name: str
    expectation: str
    parse: Callable[[str], T]

    def or_none(self, word: str) -> ValueType[T | None]:
        """The same type, where ``word`` stands for None."""
        return ValueType(
            self.name,
            f"{self.expectation}, or {word!r}",
            lambda text: None if text.lower() == word else self.parse(text),
        )


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if match is None or match.group(2) not in _UNITS_MS:
        raise ValueError(text)
    duration_ms = int(match.group(1)) * _UNITS_MS[match.group(2)]
    if duration_ms > _DURATION_MS_MAX:
        raise ValueError(text)
    return duration_ms


def _memory_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if match is None or match.group(2) not in _UNITS_BYTES:
        raise ValueError(text)
    size: int = int(match.group(1)) * _UNITS_BYTES[match.group(2)]
    if not 0 < size < 2**63:
        raise ValueError(text)
    return size


def _interval_ms(text: str) -> int | None:
    interval_ms = 0 if text.lower() == "disabled" else _duration_ms(text)
    if 0 < interval_ms < _CHECKPOINT_MS_MIN:
        raise ValueError(text)
    return interval_ms or None


def _duration_of_at_least(least_ms: int) -> ValueType[int]:
    def parse(text: str) -> int:
        duration_ms = _duration_ms(text)
        if duration_ms < least_ms:
            raise ValueError(text)
        return duration_ms

    return ValueType(
        "duration", f"a duration of at least {least_ms} ms, such as '10 s' or '1 min'", parse
    )


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _token(text: str) -> str:
    if len(text) < TOKEN_LENGTH_MIN or not (
        text.isascii() and text.isprintable() and " " not in text
    ):
        raise ValueError
    return text


def _url(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if scheme.lower() not in ("http", "https") or not separator or not rest.strip("/"):
        raise ValueError(text)
    return text


def _hosts(text: str) -> tuple[str, ...]:
    if text.lower() == "none":
        return ()
    hosts = tuple(host.strip().lower() for host in text.split(","))
    if not all(re.fullmatch(r"[a-z0-9._-]+", host) for host in hosts):
        raise ValueError(text)
    return hosts


def number(
    *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> ValueType[float]:
    """A finite number of at least ``least``, at most ``most`` and above ``above``."""

    def parse(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not least <= value <= most or value <= above:
            raise ValueError(text)
        return value

    limits = f"above {above:g}" if math.isfinite(above) else f"from {least:g} to {most:g}"
    return ValueType("number", f"a number {limits}", parse)


def integer(least: int, most: int = _INTEGER_MAX) -> ValueType[int]:
    """An integer from ``least`` to ``most``."""

    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return ValueType("integer", f"an integer from {least} to {most}", parse)


def _choice(kind: type[E], aliases: Mapping[str, E]) -> ValueType[E]:
    words = {member.value.lower(): member for member in kind}
    names = ", ".join(repr(member.value) for member in kind)
    return ValueType("enum", f"one of {names}", lambda text: {**aliases, **words}[text.lower()])


def _snapshot(text: str) -> str:
    return text if text == LATEST_SAVEPOINT else normalize(text)


DURATION = ValueType(
    "duration", "a duration such as '10 s', '500 ms', '1 min' or '2 h'", _duration_ms
)
MEMORY = ValueType("memory size", "a size such as '256 mb' or '1 gb'", _memory_bytes)
INTERVAL = ValueType(
    "duration",
    f"a duration of at least {_CHECKPOINT_MS_MIN} ms, such as '10 s' or '1 min', or 'disabled' or"
    " '0' for none",
    _interval_ms,
)
TIMEOUT = _duration_of_at_least(_CHECKPOINT_MS_MIN)
POSITIVE_DURATION = _duration_of_at_least(1)
BOOLEAN = ValueType("boolean", "'true' or 'false'", _boolean)
PATH = ValueType("path", "a path or URI", normalize)
SNAPSHOT = ValueType("path", f"a path or URI, or '{LATEST_SAVEPOINT}'", _snapshot)
TEXT = ValueType("text", "text", str)
URL = ValueType("URL", "an http:// or https:// URL", _url)
TOKEN = ValueType(
    "token",
    f"at least {TOKEN_LENGTH_MIN} letters, digits and other visible ASCII characters",
    _token,
)
HOSTS = ValueType("hosts", "host names without ports, separated by commas, or 'none'", _hosts)
RETENTION = _choice(RetainExternalized, {})
CLAIM_MODE = _choice(RecoveryClaimMode, {})
LOG_FORMAT_TYPE = _choice(LogFormat, {})
ON_SIGTERM_TYPE = _choice(OnSigterm, {})
STRATEGY = _choice(
    RestartStrategyType,
    {
        "off": RestartStrategyType.NONE,
        "disable": RestartStrategyType.NONE,
        "fixeddelay": RestartStrategyType.FIXED_DELAY,
        "exponentialdelay": RestartStrategyType.EXPONENTIAL_DELAY,
    },
)


@dataclass(frozen=True)
class ConfigOption(Generic[T]):
    """One key: its type, its default as text, and what it is for."""

    key: str
    type: ValueType[T]
    default: str
    description: str
    #: Whether the value must never be shown.
    secret: bool = False

    def shown(self, text: str) -> str:
        """The text of a value, without what is secret in it."""
        return "*" * TOKEN_LENGTH_MIN if self.secret and text != self.default else masked(text)

    def parse(self, text: str) -> T:
        """Parse ``text``; raises ``ConfigurationError`` with one sentence."""
        try:
            return self.type.parse(text.strip())
        except (ValueError, KeyError) as error:
            raise ConfigurationError(
                f"{self.key} is {quoted(self.shown(text))}, but must be {self.type.expectation}."
            ) from error
        except StorageError as error:
            raise ConfigurationError(
                f"{self.key} is {quoted(self.shown(text))}, but must be {self.type.expectation}:"
                f" {error}"
            ) from error


def as_text(conf: Mapping[str, object]) -> dict[str, str]:
    """Configuration from Python code: numbers and booleans as their text, as Spark takes them.

    Raises ``ConfigurationError`` for anything else.
    """
    text = {}
    for key, value in conf.items():
        match value:
            case bool():
                text[key] = str(value).lower()
            case str() if not is_utf8(value):
                raise ConfigurationError(f"{key} is {quoted(value)}, but must be UTF-8 text.")
            case str() | int() | float():
                text[key] = str(value)
            case _:
                raise ConfigurationError(
                    f"{key} is {type(value).__name__} in conf, but must be text, a number or a"
                    " boolean."
                )
    return text


def quoted(text: str) -> str:
    """The text quoted for a message, with the middle of a very long text cut out."""
    shown = repr(text)
    return (
        shown
        if len(shown) <= _SHOWN_CHARACTERS
        else f"{shown[: _SHOWN_CHARACTERS // 2]}...{shown[-20:]}"
    )
