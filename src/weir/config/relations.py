"""Which configuration values are compatible: checked once, when a configuration is made.

Each error names both keys and the fix. Combinations that Flink adjusts are adjusted, not refused:
an interval below the minimum pause is raised to it (PROTOCOL P38). A minimum pause is allowed with
several concurrent checkpoints, since it only delays periodic checkpoints. A timeout may be above or
below the interval.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from weir.config.options import (
    CHECKPOINT_DIR,
    CHECKPOINT_MAX_CONCURRENT,
    CHECKPOINT_UNALIGNED,
    COMMIT_INITIAL_BACKOFF,
    COMMIT_MAX_BACKOFF,
    INITIAL_BACKOFF,
    LEASE_INTERVAL,
    LEASE_TIMEOUT,
    LINEAGE_FILE,
    MAX_BACKOFF,
    REST_READING_TOKEN_FILE,
    REST_TOKEN,
    REST_TOKEN_FILE,
    SAVEPOINT_DIR,
    SSL_REST_CERTIFICATE,
    SSL_REST_ENABLED,
    SSL_REST_KEY,
    WORKING_DIR,
)
from weir.config.values import ConfigOption
from weir.errors import ConfigurationError
from weir.storage.paths import is_local, is_object_store, is_within

T = TypeVar("T")


class Values(Protocol):
    """Anything that has a value for each option."""

    def value(self, option: ConfigOption[T]) -> T:
        """The value of one option."""
        ...


def check_relations(values: Values) -> None:
    """Raise ``ConfigurationError`` for the first pair of values that contradict each other."""
    lineage_file = values.value(LINEAGE_FILE)
    if lineage_file is not None and not is_local(lineage_file):
        raise ConfigurationError(
            f"{LINEAGE_FILE.key} is {lineage_file}, but must be a local path: events are appended,"
            " which object stores cannot do."
        )
    _check_not_above(values, INITIAL_BACKOFF, MAX_BACKOFF)
    _check_not_above(values, COMMIT_INITIAL_BACKOFF, COMMIT_MAX_BACKOFF)
    if 2 * values.value(LEASE_INTERVAL) > values.value(LEASE_TIMEOUT):
        raise ConfigurationError(
            f"{LEASE_INTERVAL.key} must be at most half of {LEASE_TIMEOUT.key}, so that one late"
            " renewal does not make a live driver look dead: raise the timeout or lower the"
            " interval."
        )
    if values.value(CHECKPOINT_UNALIGNED) and values.value(CHECKPOINT_MAX_CONCURRENT) > 1:
        raise ConfigurationError(
            f"{CHECKPOINT_UNALIGNED.key} is true, but {CHECKPOINT_MAX_CONCURRENT.key} is"
            f" {values.value(CHECKPOINT_MAX_CONCURRENT)}, and barriers of one checkpoint must not"
            " overtake those of another: set the second to 1 or the first to false."
        )
    if values.value(REST_TOKEN) is not None and values.value(REST_TOKEN_FILE) is not None:
        raise ConfigurationError(
            f"{REST_TOKEN.key} and {REST_TOKEN_FILE.key} both set the token of the REST server:"
            " remove one of them."
        )
    changing = values.value(REST_TOKEN) is not None or values.value(REST_TOKEN_FILE) is not None
    if values.value(REST_READING_TOKEN_FILE) is not None and not changing:
        raise ConfigurationError(
            f"{REST_READING_TOKEN_FILE.key} is set, but without a token for those who may change"
            f" the job everybody may: set {REST_TOKEN_FILE.key} too."
        )
    for file in (SSL_REST_CERTIFICATE, SSL_REST_KEY):
        if values.value(SSL_REST_ENABLED) and values.value(file) is None:
            raise ConfigurationError(
                f"{SSL_REST_ENABLED.key} is true, but {file.key} is unset: set it to a PEM file."
            )
    if is_object_store(values.value(WORKING_DIR)):
        raise ConfigurationError(
            f"{WORKING_DIR.key} is {values.value(WORKING_DIR)}, but Spark's queries work there: set"
            " it to a local path, or to a path that all machines mount."
        )
    for durable in (CHECKPOINT_DIR, SAVEPOINT_DIR):
        working, lasting = values.value(WORKING_DIR), values.value(durable)
        if is_within(working, lasting) or is_within(lasting, working):
            raise ConfigurationError(
                f"{WORKING_DIR.key} ({working}) and {durable.key} ({lasting}) are the same"
                " directory, or one contains the other, but the first is cleared and the second"
                " must last: use separate directories."
            )


def _check_not_above(values: Values, low: ConfigOption[int], high: ConfigOption[int]) -> None:
    if values.value(low) > values.value(high):
        raise ConfigurationError(
            f"{low.key} ({values.value(low)} ms) exceeds {high.key} ({values.value(high)} ms):"
            " raise the second or lower the first."
        )
