"""Configuration: Flink's keys and spellings, and the messages for mistakes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from weir.config import Configuration, describe_options
from weir.config.options import (
    CHECKPOINT_DIR,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_TIMEOUT,
    COMMIT_ATTEMPTS,
    DEFAULT_PARALLELISM,
    FAST_WORKING_DIRECTORY,
    IGNORE_UNCLAIMED_STATE,
    OPTIONS,
    RECOVERY_CLAIM_MODE,
    RECOVERY_PATH,
    REST_PORT,
    SAVEPOINT_DIR,
    WORKING_DIR,
)
from weir.config.values import ConfigOption, RecoveryClaimMode
from weir.core.settings import (
    CheckpointConfig,
    RestartConfig,
    RestartStrategyType,
    RetainExternalized,
)
from weir.errors import ConfigurationError
from weir.job import Job

INTERVAL = "execution.checkpointing.interval"
UNALIGNED = "execution.checkpointing.unaligned.enabled"
ALIGNED_TIMEOUT = "execution.checkpointing.aligned-checkpoint-timeout"


def load(tmp_path: Path, text: str, **overrides: str) -> Configuration:
    file = tmp_path / "weir.conf"
    file.write_text(text, encoding="utf-8")
    return Configuration.load(
        file, {key.replace("__", "."): value for key, value in overrides.items()}
    )


def test_without_any_value_the_defaults_are_those_of_the_core() -> None:
    """The defaults as text in the table are equal to the core's values."""
    assert Configuration({}).checkpoint_config() == CheckpointConfig()
    assert Configuration({}).restart_config() == RestartConfig()


def test_every_default_can_be_read_and_given() -> None:
    """Copying the defaults from the reference page into a file changes nothing."""
    defaults = {option.key: option.default for option in OPTIONS}
    assert Configuration(defaults).checkpoint_config() == CheckpointConfig()
    assert Configuration(defaults).in_force() == Configuration({}).in_force() == defaults


def test_every_option_is_in_the_table_and_described() -> None:
    """An option that is defined but not listed could not be set."""
    from weir.config import options

    defined = [value for value in vars(options).values() if isinstance(value, ConfigOption)]
    assert sorted(option.key for option in defined) == sorted(
        option.key for option in describe_options()
    )
    assert all(option.description.endswith(".") for option in defined)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("250", 250),
        ("10 s", 10_000),
        ("10s", 10_000),
        (" 3 seconds ", 3_000),
        ("1min", 60_000),
        ("2 m", 120_000),
        ("1 h", 3_600_000),
        ("1 D", 86_400_000),
    ],
)
def test_durations_are_written_as_in_flink(text: str, milliseconds: int) -> None:
    """A number without a unit is in milliseconds."""
    key = CHECKPOINT_TIMEOUT.key
    assert Configuration({key: text}).checkpoint_config().timeout_ms == milliseconds


@pytest.mark.parametrize("text", ["", "ten seconds", "1.5 s", "-1 s", "10 parsecs", "s"])
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    """The message names the key, the value and what is expected."""
    with pytest.raises(
        ConfigurationError, match=rf"^{CHECKPOINT_TIMEOUT.key} is '{text}', but must be .*'10 s'"
    ):
        Configuration({CHECKPOINT_TIMEOUT.key: text})


@pytest.mark.parametrize("text", ["0", "0 s", "disabled", "DISABLED"])
def test_the_interval_can_be_switched_off(text: str) -> None:
    """Without periodic checkpoints the job is not restarted, unless a strategy is configured."""
    configuration = Configuration({INTERVAL: text})
    assert configuration.checkpoint_config().interval_ms is None
    assert configuration.restart_config().type is RestartStrategyType.NONE


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("none", RestartStrategyType.NONE),
        ("off", RestartStrategyType.NONE),
        ("disable", RestartStrategyType.NONE),
        ("fixed-delay", RestartStrategyType.FIXED_DELAY),
        ("fixeddelay", RestartStrategyType.FIXED_DELAY),
        ("Exponential-Delay", RestartStrategyType.EXPONENTIAL_DELAY),
    ],
)
def test_restart_strategies_are_named_as_in_flink(text: str, strategy: RestartStrategyType) -> None:
    """Flink's other spellings are accepted too."""
    assert Configuration({"restart-strategy.type": text}).restart_config().type is strategy


def test_a_wrong_choice_is_refused_with_all_choices() -> None:
    """One of Flink's strategies does not exist in Weir."""
    with pytest.raises(
        ConfigurationError, match="one of 'none', 'fixed-delay', 'exponential-delay'"
    ):
        Configuration({"restart-strategy.type": "failure-rate"})


def test_every_key_of_the_core_reaches_it() -> None:
    """Each field of the core's configuration takes the value of its key."""
    checkpointing = "execution.checkpointing."
    exponential = "restart-strategy.exponential-delay."
    configuration = Configuration(
        {
            checkpointing + "interval": "1 s",
            checkpointing + "timeout": "2 s",
            checkpointing + "min-pause": "3 s",
            checkpointing + "max-concurrent-checkpoints": "4",
            checkpointing + "tolerable-failed-checkpoints": "5",
            checkpointing + "num-retained": "6",
            checkpointing + "externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
            "web.checkpoints.history": "7",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "8",
            "restart-strategy.fixed-delay.delay": "9 s",
            exponential + "initial-backoff": "10 s",
            exponential + "max-backoff": "11 s",
            exponential + "backoff-multiplier": "1.2",
            exponential + "reset-backoff-threshold": "13 s",
            exponential + "jitter-factor": "0.14",
            exponential + "attempts-before-reset-backoff": "15",
        }
    )
    assert configuration.checkpoint_config() == CheckpointConfig(
        interval_ms=1_000,
        timeout_ms=2_000,
        min_pause_ms=3_000,
        max_concurrent_checkpoints=4,
        tolerable_failed_checkpoints=5,
        num_retained=6,
        retention=RetainExternalized.DELETE_ON_CANCELLATION,
        history_size=7,
    )
    assert configuration.restart_config() == RestartConfig(
        type=RestartStrategyType.FIXED_DELAY,
        fixed_delay_attempts=8,
        fixed_delay_ms=9_000,
        initial_backoff_ms=10_000,
        max_backoff_ms=11_000,
        backoff_multiplier=1.2,
        reset_backoff_threshold_ms=13_000,
        jitter_factor=0.14,
        attempts_before_reset_backoff=15,
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("rest.port", "65536"),
        ("rest.port", "http"),
        ("parallelism.default", "0"),
        ("weir.fast-working-directory", "yes"),
        ("weir.working-dir", ""),
        ("execution.checkpointing.interval", "9 ms"),
        ("execution.checkpointing.timeout", "9 ms"),
        ("execution.checkpointing.max-concurrent-checkpoints", "0"),
        ("execution.checkpointing.tolerable-failed-checkpoints", "-1"),
        ("execution.checkpointing.num-retained", "0"),
        ("execution.checkpointing.externalized-checkpoint-retention", "KEEP"),
        ("execution.state-recovery.claim-mode", "LEGACY"),
        ("execution.state-recovery.ignore-unclaimed-state", "perhaps"),
        ("execution.state-recovery.path", ""),
        ("restart-strategy.exponential-delay.initial-backoff", "0"),
        ("restart-strategy.exponential-delay.max-backoff", "0 s"),
        ("restart-strategy.exponential-delay.reset-backoff-threshold", "0 s"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "nan"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "1.0"),
        ("restart-strategy.exponential-delay.jitter-factor", "inf"),
        ("restart-strategy.exponential-delay.jitter-factor", "-0.1"),
        ("restart-strategy.exponential-delay.jitter-factor", "1.1"),
        ("execution.checkpointing.num-retained", "2147483648"),
        ("execution.checkpointing.min-pause", "106752 days"),
        ("weir.lease.interval", "9" * 120),
    ],
)
def test_a_value_that_cannot_be_is_refused_when_it_enters(key: str, text: str) -> None:
    """An impossible value is refused when it is read, not when it is first used."""
    with pytest.raises(ConfigurationError, match=f"{key} is '{text}', but must be"):
        Configuration({key: text})


@pytest.mark.parametrize(
    "key", ["rest.port", "execution.checkpointing.timeout", "parallelism.default"]
)
def test_a_number_of_5000_digits_is_refused_without_all_of_them(key: str) -> None:
    """Python does not parse such a number, and the message shortens it."""
    with pytest.raises(ConfigurationError, match=f"{key} is '999.*999', but must be") as caught:
        Configuration({key: "9" * 5000})
    assert len(str(caught.value)) < 500


def test_booleans_and_optional_integers() -> None:
    """Letter case does not matter, and a word stands for None."""
    given = Configuration({"weir.fast-working-directory": "FALSE", "parallelism.default": "8"})
    assert given.value(FAST_WORKING_DIRECTORY) is False
    assert given.value(DEFAULT_PARALLELISM) == 8
    assert Configuration({}).value(DEFAULT_PARALLELISM) is None
    assert Configuration({}).value(REST_PORT) == 8081
    assert Configuration({}).value(COMMIT_ATTEMPTS) == 8


def test_default_directories_are_below_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Default directories become absolute paths, and URIs stay as they are."""
    monkeypatch.chdir(tmp_path)
    assert Configuration({}).value(CHECKPOINT_DIR) == f"{tmp_path}/.weir/checkpoints"
    assert Configuration({}).value(SAVEPOINT_DIR) == f"{tmp_path}/.weir/savepoints"
    assert Configuration({}).value(WORKING_DIR) == f"{tmp_path}/.weir/work"
    given = Configuration({"execution.checkpointing.dir": "s3a://bucket/c/"})
    assert given.value(CHECKPOINT_DIR) == "s3a://bucket/c"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("execution.checkpointing.intervall", "execution.checkpointing.interval"),
        ("execution.checkpoint.timeout", "execution.checkpointing.timeout"),
        ("rest.prot", "rest.port"),
        ("state.checkpoints.dir", "execution.checkpointing.dir"),
        ("state.savepoints.dir", "execution.checkpointing.savepoint-dir"),
        ("state.checkpoints.num-retained", "execution.checkpointing.num-retained"),
        ("execution.state-recovery.claimmode", "execution.state-recovery.claim-mode"),
        (
            "execution.state-recovery.allow-unclaimed-state",
            "execution.state-recovery.ignore-unclaimed-state",
        ),
        ("execution.checkpointing.min-pause-between", "execution.checkpointing.min-pause"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_meant(key: str, meant: str) -> None:
    """A misspelled key must not silently leave the default in force."""
    with pytest.raises(
        ConfigurationError, match=f"Unknown configuration key '{key}': did you mean {meant}[?]"
    ):
        Configuration({key: "1"})


def test_sparks_keys_are_handed_on(tmp_path: Path) -> None:
    """Spark's keys are passed on unchecked, and Weir's keys are not among them."""
    configuration = load(
        tmp_path, "spark.speculation = true\nspark.speculation.interval: 1s\nrest.port: 0\n"
    )
    assert configuration.spark_conf() == {
        "spark.speculation": "true",
        "spark.speculation.interval": "1s",
    }
    assert "spark.speculation" not in configuration.in_force()


def test_a_file_holds_flinks_and_sparks_spelling(tmp_path: Path) -> None:
    """A file may use colons or equals signs, quotes, comments and empty lines."""
    configuration = load(
        tmp_path,
        """
        # how often
        execution.checkpointing.interval: 30 s
        rest.port=0
        rest.bind-address = "0.0.0.0"

        execution.checkpointing.dir: s3a://bucket/a=b
        """.replace("        ", ""),
    )
    assert dict(configuration) == {
        "execution.checkpointing.interval": "30 s",
        "rest.port": "0",
        "rest.bind-address": "0.0.0.0",
        "execution.checkpointing.dir": "s3a://bucket/a=b",
    }
    assert configuration.value(CHECKPOINT_INTERVAL) == 30_000


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    """The other keys of the file stay in force."""
    configuration = load(tmp_path, "rest.port: 1\nparallelism.default: 2\n", rest__port="3")
    assert dict(configuration) == {"rest.port": "3", "parallelism.default": "2"}


def test_without_a_file_there_are_only_overrides() -> None:
    """Weir does not search for a default file."""
    assert dict(Configuration.load(None, {"rest.port": "0"})) == {"rest.port": "0"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rest.port: 1\nrest.port: 2\n", "has the key rest.port twice"),
        ("rest.port: 1\nnonsense\n", "Line 2 of the configuration file .* is not of the form"),
        ("execution:\n  checkpointing:\n    interval: 1s\n", "indented lines below 'execution'"),
        ("rest.port: 1\n[other]\nrest.port: 2\n", r"has the section \[other\]"),
        ("rest.prot: 1\n", "did you mean rest.port"),
    ],
)
def test_a_file_that_cannot_be_understood_says_where(tmp_path: Path, text: str, words: str) -> None:
    """The message names the line or the key."""
    with pytest.raises(ConfigurationError, match=words):
        load(tmp_path, text)


def test_a_file_that_is_missing_or_not_text_is_an_error(tmp_path: Path) -> None:
    """A file that the user names must be readable."""
    with pytest.raises(
        ConfigurationError,
        match=f"Cannot read the configuration file {tmp_path}/nothing: No such file",
    ):
        Configuration.load(tmp_path / "nothing", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="must be UTF-8 text"):
        Configuration.load(tmp_path / "binary", {})


@pytest.mark.parametrize("retention", list(RetainExternalized))
def test_every_retention_of_flink_can_be_configured(retention: RetainExternalized) -> None:
    """Letter case does not matter; only RETAIN_ON_CANCELLATION keeps checkpoints at a cancel."""
    key = "execution.checkpointing.externalized-checkpoint-retention"
    assert Configuration({key: retention.value.lower()}).checkpoint_config().retention is retention
    assert retention.deletes_on_cancellation == (retention.name != "RETAIN_ON_CANCELLATION")


def test_state_recovery_has_flinks_defaults(tmp_path: Path) -> None:
    """The defaults are no path, NO_CLAIM, and no non-restored state allowed."""
    none, given = (
        Configuration({}),
        Configuration(
            {
                "execution.state-recovery.path": f"{tmp_path}/savepoint-1/",
                "execution.state-recovery.claim-mode": "claim",
                "execution.state-recovery.ignore-unclaimed-state": "true",
            }
        ),
    )
    assert none.value(RECOVERY_PATH) is None
    assert none.value(RECOVERY_CLAIM_MODE) is RecoveryClaimMode.NO_CLAIM
    assert none.value(IGNORE_UNCLAIMED_STATE) is False
    assert given.value(RECOVERY_PATH) == f"{tmp_path}/savepoint-1"
    assert given.value(RECOVERY_CLAIM_MODE) is RecoveryClaimMode.CLAIM
    assert given.value(IGNORE_UNCLAIMED_STATE) is True


@pytest.mark.parametrize(
    ("enabled", "timeout", "milliseconds"),
    [("false", "0", None), ("false", "30 s", None), ("true", "0", 0), ("true", "30 s", 30_000)],
)
def test_barriers_overtake_records_only_where_unaligned_checkpoints_are_enabled(
    enabled: str, timeout: str, milliseconds: int | None
) -> None:
    """The timeout alone has no effect, as in Flink; without a timeout barriers overtake at once."""
    configuration = Configuration({UNALIGNED: enabled, ALIGNED_TIMEOUT: timeout})
    assert configuration.checkpoint_config().aligned_timeout_ms == milliseconds


@pytest.mark.parametrize(
    ("former", "key"),
    [
        ("execution.checkpointing.unaligned", UNALIGNED),
        ("execution.checkpointing.alignment-timeout", ALIGNED_TIMEOUT),
    ],
)
def test_the_older_names_of_unaligned_keys_lead_to_those_of_today(former: str, key: str) -> None:
    """The message for one of Flink's former key names gives the current name."""
    with pytest.raises(ConfigurationError, match=f"did you mean {key}\\?"):
        Configuration({former: "true"})


def test_flinks_limits_are_those_of_weir() -> None:
    """The edge values that Flink accepts are accepted."""
    exponential = "restart-strategy.exponential-delay."
    edges = Configuration(
        {
            INTERVAL: "10 ms",
            "execution.checkpointing.timeout": "10 ms",
            exponential + "jitter-factor": "1.0",
            exponential + "backoff-multiplier": "1.01",
            exponential + "initial-backoff": "1 ms",
            exponential + "max-backoff": "1 ms",
        }
    )
    assert edges.checkpoint_config().interval_ms == edges.checkpoint_config().timeout_ms == 10
    assert edges.restart_config().jitter_factor == 1.0


@pytest.mark.parametrize(
    ("values", "first", "second", "way_out"),
    [
        (
            {"restart-strategy.exponential-delay.initial-backoff": "2 min"},
            "restart-strategy.exponential-delay.initial-backoff (120000 ms)",
            "restart-strategy.exponential-delay.max-backoff (60000 ms)",
            "raise the second or lower the first",
        ),
        (
            {"weir.sink.commit.initial-backoff": "1 min"},
            "weir.sink.commit.initial-backoff (60000 ms)",
            "weir.sink.commit.max-backoff (10000 ms)",
            "raise the second or lower the first",
        ),
        (
            {"weir.lease.interval": "6 s"},
            "weir.lease.interval",
            "at most half of weir.lease.timeout",
            "raise the timeout or lower the interval",
        ),
        (
            {UNALIGNED: "true", "execution.checkpointing.max-concurrent-checkpoints": "2"},
            UNALIGNED,
            "execution.checkpointing.max-concurrent-checkpoints is 2",
            "set the second to 1 or the first to false",
        ),
        (
            {"weir.working-dir": "s3://bucket/work"},
            "weir.working-dir is s3://bucket/work",
            "Spark's queries work there",
            "set it to a local path",
        ),
        (
            {"weir.working-dir": "/d", "execution.checkpointing.dir": "/d/"},
            "weir.working-dir",
            "execution.checkpointing.dir (/d) are the same directory",
            "use separate directories",
        ),
        (
            {"weir.working-dir": "/d", "execution.checkpointing.savepoint-dir": "/d"},
            "weir.working-dir",
            "execution.checkpointing.savepoint-dir (/d) are the same directory",
            "use separate directories",
        ),
        (
            {"weir.working-dir": "/d/e", "execution.checkpointing.dir": "/d"},
            "weir.working-dir (/d/e)",
            "or one contains the other",
            "use separate directories",
        ),
        (
            {"weir.working-dir": "/d", "execution.checkpointing.savepoint-dir": "/d/e"},
            "weir.working-dir (/d)",
            "or one contains the other",
            "use separate directories",
        ),
    ],
)
def test_values_at_odds_are_refused_with_both_keys_and_the_way_out(
    values: dict[str, str], first: str, second: str, way_out: str
) -> None:
    """One sentence names them when the configuration is created."""
    with pytest.raises(ConfigurationError) as caught:
        Configuration(values)
    sentence = str(caught.value)
    assert sentence.index(first) < sentence.index(second) < sentence.index(way_out)
    assert "\n" not in sentence


def test_a_working_directory_that_is_the_checkpoint_directory_by_a_link_is_refused(
    tmp_path: Path,
) -> None:
    """The end of the job clears the working directory, which would be its checkpoints."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "checkpoints")
    for working in ("link", "link/work"):
        with pytest.raises(ConfigurationError, match="same directory, or one contains the other"):
            Configuration(
                {
                    "weir.working-dir": f"{tmp_path}/{working}",
                    "execution.checkpointing.dir": f"{tmp_path}/checkpoints",
                }
            )
    Configuration(
        {
            "weir.working-dir": f"{tmp_path}/link-2",
            "execution.checkpointing.dir": f"{tmp_path}/link",
        }
    )


def test_what_flink_adjusts_is_not_refused() -> None:
    """An interval below the pause becomes the pause; a pause goes together with several concurrent
    checkpoints."""
    config = Configuration(
        {
            INTERVAL: "1 s",
            "execution.checkpointing.min-pause": "5 s",
            "execution.checkpointing.timeout": "2 s",
            "execution.checkpointing.max-concurrent-checkpoints": "3",
        }
    ).checkpoint_config()
    assert config.effective_interval_ms == 5_000
    assert config.max_concurrent_checkpoints == 3


def test_values_that_others_complete_are_checked_one_by_one() -> None:
    """The command line may set an interval that fits the time-out which only the job sets."""
    given = Configuration.given(None, {"weir.lease.interval": "20 s"})
    assert given == {"weir.lease.interval": "20 s"}
    assert Configuration({"weir.lease.timeout": "60 s", **given})
    with pytest.raises(ConfigurationError, match=r"weir\.lease\.interval"):
        Configuration(given)
    with pytest.raises(ConfigurationError, match=r"weir\.lease\.interval"):
        Configuration.given(None, {"weir.lease.interval": "never"})


@pytest.mark.parametrize("key", ["weir.lease.interval", "weir.lease.timeout"])
def test_a_lease_of_no_time_is_refused(key: str) -> None:
    """The driver would renew it without a pause, or every living driver would count as dead."""
    with pytest.raises(ConfigurationError, match=key):
        Configuration({key: "0 s"})


def test_conf_in_python_takes_numbers_and_booleans_as_text() -> None:
    """As Spark does; the values are those of a file."""
    conf = {"parallelism.default": 4, "spark.x": 0.5, UNALIGNED: True, INTERVAL: "1 min"}
    assert dict(Configuration(Job("orders", conf=conf).conf)) == {
        "parallelism.default": "4",
        "spark.x": "0.5",
        UNALIGNED: "true",
        INTERVAL: "1 min",
    }


def test_text_that_is_not_utf8_is_refused_by_its_key() -> None:
    """No answer of the REST server could have it."""
    with pytest.raises(ConfigurationError, match=r"weir.lineage.namespace is .*must be UTF-8 text"):
        Configuration({"weir.lineage.namespace": "a\udcff"})


@pytest.mark.parametrize("value", [None, ["4"], timedelta(seconds=1)])
def test_conf_in_python_refuses_other_values_by_their_key(value: object) -> None:
    """Without a stack trace."""
    with pytest.raises(ConfigurationError, match=r"^parallelism\.default is .* must be text"):
        Configuration({"parallelism.default": value})
