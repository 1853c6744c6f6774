"""Configuration with Flink's keys: loads values, checks them, and explains wrong values.

Values are text until they are read, as in Flink. They come from a file of ``key: value`` or
``key = value`` lines (``#`` starts a comment line), which covers both Flink's flat ``config.yaml``
and Spark's properties style, and from overrides (``--conf``, keyword arguments), which win. Every
key and every value is checked on entry, so a typo is an immediate error that names the key that was
probably meant. ``spark.*`` keys are passed to Spark unchecked.

The keys are in ``weir/config/options.py``; ``weir/config/relations.py`` checks which values are
compatible.
"""

from __future__ import annotations

import configparser
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from weir.config.options import (
    ATTEMPTS_BEFORE_RESET_BACKOFF,
    BACKOFF_MULTIPLIER,
    CHECKPOINT_ALIGNED_TIMEOUT,
    CHECKPOINT_DIR,
    CHECKPOINT_HISTORY,
    CHECKPOINT_INCREMENTAL,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_MAX_CONCURRENT,
    CHECKPOINT_MIN_PAUSE,
    CHECKPOINT_NUM_RETAINED,
    CHECKPOINT_RETENTION,
    CHECKPOINT_TIMEOUT,
    CHECKPOINT_TOLERABLE_FAILURES,
    CHECKPOINT_UNALIGNED,
    FIXED_DELAY,
    FIXED_DELAY_ATTEMPTS,
    GIVE_UP_AFTER,
    INITIAL_BACKOFF,
    JITTER_FACTOR,
    MAX_BACKOFF,
    OPTIONS,
    RECOVERY_CLAIM_MODE,
    RESET_BACKOFF_THRESHOLD,
    RESTART_TYPE,
    SAVEPOINT_DIR,
)
from weir.config.relations import check_relations
from weir.config.values import ConfigOption, RecoveryClaimMode, as_text
from weir.core.settings import CheckpointConfig, RestartConfig, RestartStrategyType
from weir.errors import ConfigurationError

T = TypeVar("T")

SPARK_PREFIX = "spark."

_BY_KEY = {option.key: option for option in OPTIONS}

#: Key names of older Flink releases for which the closest match would be the wrong key.
_FORMER_KEYS = {
    "state.checkpoints.dir": CHECKPOINT_DIR.key,
    "state.savepoints.dir": SAVEPOINT_DIR.key,
}


def describe_options() -> list[ConfigOption[Any]]:
    """Every key with its type, default and description, for ``docs/CONFIGURATION.md``."""
    return list(OPTIONS)


class Configuration(Mapping[str, str]):
    """The values that were given, as text by key; immutable. ``value`` reads a value, with its
    default.

    Construction raises ``ConfigurationError`` for an unknown key, an invalid value or values that
    contradict each other.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        """``values``: text, or numbers and booleans, which become their text as in Spark."""
        self._values = as_text(values)
        _check_each(self._values)
        check_relations(self)

    @classmethod
    def load(cls, file: Path | None, overrides: Mapping[str, object]) -> Configuration:
        """The values of a file (None: no file), overridden by ``overrides``."""
        return cls({**({} if file is None else _read_file(file)), **overrides})

    @staticmethod
    def given(file: Path | None, overrides: Mapping[str, object]) -> dict[str, str]:
        """Like ``load``, for values that others will complete.

        So only each value by itself is checked: relations hold for the whole.
        """
        values = as_text({**({} if file is None else _read_file(file)), **overrides})
        _check_each(values)
        return values

    @staticmethod
    def known(values: Mapping[str, str]) -> dict[str, str]:
        """The values that another version recorded, without keys unknown to this version."""
        return {
            key: text
            for key, text in values.items()
            if key.startswith(SPARK_PREFIX) or key in _BY_KEY
        }

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def value(self, option: ConfigOption[T]) -> T:
        """The value of an option, or its default."""
        return option.parse(self._values.get(option.key, option.default))

    def in_force(self) -> dict[str, str]:
        """The text of every key but Spark's, defaults included, with secrets masked."""
        return {
            option.key: option.shown(self._values.get(option.key, option.default))
            for option in OPTIONS
        }

    def spark_conf(self) -> dict[str, str]:
        """The ``spark.*`` keys, for the Spark session."""
        return {key: text for key, text in self._values.items() if key.startswith(SPARK_PREFIX)}

    @property
    def claims_snapshot(self) -> bool:
        """Whether a new job owns the snapshot that it starts from."""
        return self.value(RECOVERY_CLAIM_MODE) is RecoveryClaimMode.CLAIM

    def checkpoint_config(self) -> CheckpointConfig:
        """``execution.checkpointing.*`` for the core."""
        return CheckpointConfig(
            interval_ms=self.value(CHECKPOINT_INTERVAL),
            timeout_ms=self.value(CHECKPOINT_TIMEOUT),
            min_pause_ms=self.value(CHECKPOINT_MIN_PAUSE),
            max_concurrent_checkpoints=self.value(CHECKPOINT_MAX_CONCURRENT),
            tolerable_failed_checkpoints=self.value(CHECKPOINT_TOLERABLE_FAILURES),
            num_retained=self.value(CHECKPOINT_NUM_RETAINED),
            incremental=self.value(CHECKPOINT_INCREMENTAL),
            aligned_timeout_ms=(
                self.value(CHECKPOINT_ALIGNED_TIMEOUT) if self.value(CHECKPOINT_UNALIGNED) else None
            ),
            retention=self.value(CHECKPOINT_RETENTION),
            history_size=self.value(CHECKPOINT_HISTORY),
        )

    def restart_config(self) -> RestartConfig:
        """``restart-strategy.*`` for the core."""
        strategy = self.value(RESTART_TYPE)
        periodic = self.value(CHECKPOINT_INTERVAL) is not None
        if strategy is None:
            strategy = (
                RestartStrategyType.EXPONENTIAL_DELAY if periodic else RestartStrategyType.NONE
            )
        return RestartConfig(
            type=strategy,
            fixed_delay_attempts=self.value(FIXED_DELAY_ATTEMPTS),
            fixed_delay_ms=self.value(FIXED_DELAY),
            initial_backoff_ms=self.value(INITIAL_BACKOFF),
            max_backoff_ms=self.value(MAX_BACKOFF),
            backoff_multiplier=self.value(BACKOFF_MULTIPLIER),
            reset_backoff_threshold_ms=self.value(RESET_BACKOFF_THRESHOLD),
            jitter_factor=self.value(JITTER_FACTOR),
            attempts_before_reset_backoff=self.value(ATTEMPTS_BEFORE_RESET_BACKOFF),
            # Without periodic checkpoints, no checkpoint may ever complete between two failures,
            # however long the job ran.
            give_up_after_ms=self.value(GIVE_UP_AFTER) if periodic else None,
        )


def _check_each(values: Mapping[str, str]) -> None:
    for key, text in values.items():
        if not key.startswith(SPARK_PREFIX):
            _option(key).parse(text)


def _option(key: str) -> ConfigOption[Any]:
    option = _BY_KEY.get(key)
    if option is None:
        near = (
            [_FORMER_KEYS[key]]
            if key in _FORMER_KEYS
            else difflib.get_close_matches(key, _BY_KEY, 1, 0.5)
        )
        hint = f"did you mean {near[0]}?" if near else "see the documentation's page CONFIGURATION."
        raise ConfigurationError(f"Unknown configuration key {key!r}: {hint}")
    return option


def _read_file(file: Path) -> dict[str, str]:
    """Keys and values of a file, parsed by ``configparser``, which needs a section header."""
    parser = configparser.RawConfigParser(comment_prefixes=("#",), default_section="\n")
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    try:
        parser.read_string("[weir]\n" + file.read_text(encoding="utf-8"), source=str(file))
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the configuration file {file}: {error.strerror or error}; check its path."
        ) from error
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigurationError(_file_problem(file, error)) from error
    if len(parser.sections()) != 1:
        raise ConfigurationError(
            f"The configuration file {file} has the section [{parser.sections()[1]}], but must"
            " consist of lines `key: value` with full keys."
        )
    values = dict(parser.items("weir"))
    for key, text in values.items():
        if "\n" in text:
            raise ConfigurationError(
                f"The configuration file {file} has indented lines below {key!r}, but must"
                " consist of lines `key: value` with full keys."
            )
        values[key] = _unquoted(text)
    return values


def _file_problem(file: Path, error: configparser.Error | UnicodeDecodeError) -> str:
    if isinstance(error, configparser.DuplicateOptionError):
        return (
            f"The configuration file {file} has the key {error.option} twice: remove one of the"
            " lines."
        )
    if isinstance(error, configparser.ParsingError):
        line, _ = error.errors[0]
        return f"Line {line - 1} of the configuration file {file} is not of the form `key: value`."
    return f"The configuration file {file} must be UTF-8 text of lines `key: value`: {error}"


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
