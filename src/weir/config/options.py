"""The table of configuration keys: each key's type, default and description.

``OPTIONS`` is the single table, used for reading values (``weir/config``) and for the reference
page (``docs/CONFIGURATION.md``). Keys and defaults are Flink's; where a default differs, the
description says so (PROTOCOL P42). Defaults are text, parsed like any other value.
``weir/config/values.py`` parses values; ``weir/config/relations.py`` checks which values are
compatible.
"""

from __future__ import annotations

from typing import Any

from weir.config.values import (
    BOOLEAN,
    CLAIM_MODE,
    DURATION,
    HOSTS,
    INTERVAL,
    LOG_FORMAT_TYPE,
    MEMORY,
    ON_SIGTERM_TYPE,
    PATH,
    POSITIVE_DURATION,
    RETENTION,
    SNAPSHOT,
    STRATEGY,
    TEXT,
    TIMEOUT,
    TOKEN,
    URL,
    ConfigOption,
    integer,
    number,
)

_CHECKPOINTING = "execution.checkpointing."
_RECOVERY = "execution.state-recovery."
_FIXED = "restart-strategy.fixed-delay."
_AUTHENTICATION = "rest.authentication."
_SSL_REST = "security.ssl.rest."
_EXPONENTIAL = "restart-strategy.exponential-delay."

CHECKPOINT_INTERVAL = ConfigOption(
    _CHECKPOINTING + "interval",
    INTERVAL,
    "10 s",
    "Time between periodic checkpoints (Flink: none). 'disabled' or 0: checkpoints only on request"
    " and at the end.",
)
CHECKPOINT_TIMEOUT = ConfigOption(
    _CHECKPOINTING + "timeout",
    TIMEOUT,
    "10 min",
    "A checkpoint that takes longer is aborted.",
)
CHECKPOINT_MIN_PAUSE = ConfigOption(
    _CHECKPOINTING + "min-pause",
    DURATION,
    "0 ms",
    "Minimum time from the end of a checkpoint to the next periodic checkpoint. A shorter interval"
    " is raised to it.",
)
CHECKPOINT_MAX_CONCURRENT = ConfigOption(
    _CHECKPOINTING + "max-concurrent-checkpoints",
    integer(1),
    "1",
    "Maximum number of concurrent checkpoints; must be 1 with unaligned checkpoints.",
)
CHECKPOINT_TOLERABLE_FAILURES = ConfigOption(
    _CHECKPOINTING + "tolerable-failed-checkpoints",
    integer(0),
    "0",
    "Consecutive checkpoint failures that the job tolerates.",
)
CHECKPOINT_NUM_RETAINED = ConfigOption(
    _CHECKPOINTING + "num-retained", integer(1), "1", "Number of completed checkpoints to retain."
)
CHECKPOINT_INCREMENTAL = ConfigOption(
    _CHECKPOINTING + "incremental",
    BOOLEAN,
    "true",
    "Whether a checkpoint writes only the state files that the last checkpoint lacks (Flink:"
    " false).",
)
CHECKPOINT_UNALIGNED = ConfigOption(
    _CHECKPOINTING + "unaligned.enabled",
    BOOLEAN,
    "false",
    "Whether checkpoint barriers may overtake the records between two chains. These become part of"
    " the checkpoint, which then does not wait until they are processed. Savepoints are always"
    " aligned.",
)
CHECKPOINT_ALIGNED_TIMEOUT = ConfigOption(
    _CHECKPOINTING + "aligned-checkpoint-timeout",
    DURATION,
    "0 ms",
    "With unaligned checkpoints: how long a checkpoint's barriers wait for records before they"
    " overtake them.",
)
CHECKPOINT_DIR = ConfigOption(
    _CHECKPOINTING + "dir",
    PATH,
    ".weir/checkpoints",
    "Directory of checkpoints and job logs (Flink: unset). A relative path is resolved against"
    " the current directory.",
)
SAVEPOINT_DIR = ConfigOption(
    _CHECKPOINTING + "savepoint-dir",
    PATH,
    ".weir/savepoints",
    "Default directory of savepoints (Flink: unset). A relative path is resolved against the"
    " current directory.",
)
CHECKPOINT_RETENTION = ConfigOption(
    _CHECKPOINTING + "externalized-checkpoint-retention",
    RETENTION,
    "RETAIN_ON_CANCELLATION",
    "Whether to keep checkpoints when the job is cancelled (Flink: NO_EXTERNALIZED_CHECKPOINTS)."
    " Those of a failed or suspended job are always kept, since the same command resumes it.",
)
RECOVERY_PATH = ConfigOption(
    _RECOVERY + "path",
    SNAPSHOT.or_none("unset"),
    "unset",
    "Savepoint or retained checkpoint from which a new job starts; 'weir run --from-savepoint'"
    " takes precedence. 'latest': the savepoint with which the job was stopped, if it has not gone"
    " on since.",
)
RECOVERY_CLAIM_MODE = ConfigOption(
    _RECOVERY + "claim-mode",
    CLAIM_MODE,
    "NO_CLAIM",
    "Who owns the snapshot from which a new job starts. NO_CLAIM: the user; it is never deleted."
    " CLAIM: the job, which deletes it once newer checkpoints have replaced it.",
)
IGNORE_UNCLAIMED_STATE = ConfigOption(
    _RECOVERY + "ignore-unclaimed-state",
    BOOLEAN,
    "false",
    "Start even if the snapshot has state of steps that are no longer in the pipeline; that state"
    " is dropped.",
)
RESTART_TYPE = ConfigOption(
    "restart-strategy.type",
    STRATEGY.or_none("default"),
    "default",
    "How a failed job is restarted. 'default': exponential-delay, or none while periodic"
    " checkpoints are disabled.",
)
FIXED_DELAY_ATTEMPTS = ConfigOption(
    _FIXED + "attempts", integer(0), "1", "Restarts before the job fails for good."
)
FIXED_DELAY = ConfigOption(_FIXED + "delay", DURATION, "1 s", "Delay before each restart.")
INITIAL_BACKOFF = ConfigOption(
    _EXPONENTIAL + "initial-backoff",
    POSITIVE_DURATION,
    "1 s",
    "Delay before the first restart.",
)
MAX_BACKOFF = ConfigOption(
    _EXPONENTIAL + "max-backoff",
    POSITIVE_DURATION,
    "1 min",
    "Maximum delay before a restart.",
)
BACKOFF_MULTIPLIER = ConfigOption(
    _EXPONENTIAL + "backoff-multiplier",
    number(above=1.0),
    "1.5",
    "Factor by which the delay grows with each failure.",
)
RESET_BACKOFF_THRESHOLD = ConfigOption(
    _EXPONENTIAL + "reset-backoff-threshold",
    POSITIVE_DURATION,
    "1 h",
    "A job that ran this long without failing restarts with the initial backoff.",
)
JITTER_FACTOR = ConfigOption(
    _EXPONENTIAL + "jitter-factor",
    number(least=0.0, most=1.0),
    "0.1",
    "Random variation of the delay, as a fraction of it.",
)
ATTEMPTS_BEFORE_RESET_BACKOFF = ConfigOption(
    _EXPONENTIAL + "attempts-before-reset-backoff",
    integer(0).or_none("infinite"),
    "infinite",
    "Restarts since the last reset of the backoff before the job fails for good.",
)
GIVE_UP_AFTER = ConfigOption(
    "weir.restart.give-up-after",
    POSITIVE_DURATION.or_none("never"),
    "10 min",
    "While periodic checkpoints are on: how long the job may keep failing with the same cause, at"
    " least five times and without progress in between, before it fails for good. Progress is a"
    " completed checkpoint; if an input fails, a checkpoint that contains it.",
)
TASK_CANCELLATION_TIMEOUT = ConfigOption(
    "task.cancellation.timeout",
    POSITIVE_DURATION,
    "3 min",
    "How long a cancellation, a stop or a restart waits for hanging queries, commits and starts"
    " before it abandons them.",
)
DEFAULT_PARALLELISM = ConfigOption(
    "parallelism.default",
    integer(1).or_none("unset"),
    "unset",
    "Number of state partitions (Flink: 1). 'unset': Spark's, spark.sql.shuffle.partitions; a"
    " restored job keeps the number it has.",
)
REST_PORT = ConfigOption(
    "rest.port",
    integer(0, 65535),
    "8081",
    "Port of the REST server; 0 picks a free port. If it is not set and 8081 is taken, the server"
    " listens on the next free port.",
)
REST_BIND_ADDRESS = ConfigOption(
    "rest.bind-address",
    TEXT,
    "127.0.0.1",
    "Address on which the REST server listens (Flink: all). Any other than loopback needs a token.",
)
REST_ALLOWED_HOSTS = ConfigOption(
    "weir.rest.allowed-hosts",
    HOSTS,
    "none",
    "Host names that clients may use for the REST server, besides those of loopback and of"
    " rest.bind-address. Requests to any other name are refused, since a web page could have made"
    " them.",
)
REST_TOKEN = ConfigOption(
    _AUTHENTICATION + "token",
    TOKEN.or_none("unset"),
    "unset",
    "Token that clients of the REST server must send, as 'Authorization: Bearer TOKEN' (Flink has"
    " none). A token file keeps the token out of process lists.",
    secret=True,
)
REST_TOKEN_FILE = ConfigOption(
    _AUTHENTICATION + "token-file",
    PATH.or_none("unset"),
    "unset",
    "File with the token, readable by its owner and group only. A missing file is created with a"
    " new token.",
)
REST_READING_TOKEN_FILE = ConfigOption(
    "weir.rest.reading-token-file",
    PATH.or_none("unset"),
    "unset",
    "File with another token, for those who may look at the job but not change it: other requests"
    " than GET are refused to them, and the web page shows them no buttons. A missing file is"
    " created with a new token. Needs a token for those who may.",
)
SSL_REST_ENABLED = ConfigOption(
    _SSL_REST + "enabled", BOOLEAN, "false", "Whether the REST server accepts HTTPS only."
)
SSL_REST_CERTIFICATE = ConfigOption(
    _SSL_REST + "certificate",
    PATH.or_none("unset"),
    "unset",
    "PEM file with the server's certificate and those of its issuers (Flink: a Java keystore).",
)
SSL_REST_KEY = ConfigOption(
    _SSL_REST + "key",
    PATH.or_none("unset"),
    "unset",
    "PEM file with the certificate's private key.",
)
CHECKPOINT_HISTORY = ConfigOption(
    "web.checkpoints.history", integer(1), "10", "Number of checkpoints in the REST history."
)
WEB_REFRESH = ConfigOption(
    "web.refresh-interval",
    POSITIVE_DURATION,
    "3 s",
    "How often Flink's dashboard asks.",
)
ASYNC_STORE_DURATION = ConfigOption(
    "rest.async.store-duration",
    DURATION,
    "5 min",
    "How long the result of a REST request is kept.",
)
REST_LINGER = ConfigOption(
    "weir.rest.linger",
    DURATION,
    "0 ms",
    "How long the REST server stays after the job has ended, so that clients see how: finished,"
    " failed or cancelled. 'weir history' shows ended jobs at any time.",
)
PRIVATE_SNAPSHOTS = ConfigOption(
    "weir.private-snapshots",
    BOOLEAN,
    "true",
    "Whether new directories of checkpoints and savepoints on local file systems and, with a"
    " local master, a job's working directory are accessible to their owner only. 'false': the"
    " umask decides.",
)
WORKING_DIR = ConfigOption(
    "weir.working-dir",
    PATH,
    ".weir/work",
    "Where running queries keep their files; disposable. A relative path is resolved against the"
    " current directory.",
)
FAST_WORKING_DIRECTORY = ConfigOption(
    "weir.fast-working-directory",
    BOOLEAN,
    "true",
    "Write the working directory without Spark's own durability safeguards, since only"
    " checkpoints must survive.",
)
STATE_MEMORY = ConfigOption(
    "weir.operators.state-memory",
    MEMORY,
    "256 mb",
    "How much of the keyed state of a Python operator's subtask lies in memory. What is beyond"
    " lies in files in Spark's local directories ('spark.local.dir') and, as far as there is"
    " room, in the system's cache.",
)
REJECTS_MAX = ConfigOption(
    "weir.rejects.max-rows-per-batch",
    integer(1, 10_000_000),
    "100000",
    "How many rows of one batch a step with 'on_error' sets aside. They pass through the driver's"
    " memory; if there are more, the job fails.",
)
CLASS_ARCHIVE = ConfigOption(
    "weir.class-archive",
    BOOLEAN,
    "true",
    "Whether Spark's JVM maps its classes from an archive in the user's cache directory; 'weir run'"
    " creates a missing archive at its end ('weir warmup' creates it at once).",
)
ON_SIGTERM = ConfigOption(
    "weir.on-sigterm",
    ON_SIGTERM_TYPE,
    "suspend",
    "What SIGTERM does to the job: 'suspend', or 'savepoint', which stops it with a savepoint, and"
    " suspends it if none can be taken. The next start goes on from there by '--from-savepoint"
    " latest', which is required. Either way the exit code is 143.",
)
LOG_FORMAT = ConfigOption(
    "weir.log-format",
    LOG_FORMAT_TYPE,
    "text",
    "Form of the log on standard error: 'text', or 'json' with one object per line; 'weir run' then"
    " reports everything there.",
)
PROGRESS_INTERVAL = ConfigOption(
    "weir.progress-interval",
    DURATION.or_none("never"),
    "1 min",
    "How often a running job prints its status, newest checkpoint and rows on standard error. 0: at"
    " each checkpoint. 'never': it prints nothing but errors.",
)
LEASE_TIMEOUT = ConfigOption(
    "weir.lease.timeout",
    POSITIVE_DURATION,
    "10 s",
    "A driver that has not renewed its lease for this long counts as dead.",
)
LEASE_INTERVAL = ConfigOption(
    "weir.lease.interval",
    POSITIVE_DURATION,
    "2 s",
    "Interval at which the driver renews its lease.",
)
COMMIT_ATTEMPTS = ConfigOption(
    "weir.sink.commit.attempts",
    integer(1),
    "8",
    "Number of attempts to commit a sink before its task fails.",
)
COMMIT_INITIAL_BACKOFF = ConfigOption(
    "weir.sink.commit.initial-backoff",
    DURATION,
    "100 ms",
    "Delay before the first retry of a commit.",
)
COMMIT_MAX_BACKOFF = ConfigOption(
    "weir.sink.commit.max-backoff",
    DURATION,
    "10 s",
    "Maximum delay between two attempts to commit.",
)
KAFKA_GROUP = ConfigOption(
    "weir.kafka.group",
    TEXT.or_none("none"),
    "none",
    "Consumer group of Kafka, without members, that gets the offsets of each completed checkpoint,"
    " for tools that watch the lag. A source may name its own, as an option of this name.",
)
LINEAGE_URL = ConfigOption(
    "weir.lineage.url",
    URL.or_none("none"),
    "none",
    "Server that gets OpenLineage events about what the job reads and writes; events go to the path"
    " 'api/v1/lineage' there. Needs weir-spark[lineage].",
)
LINEAGE_FILE = ConfigOption(
    "weir.lineage.file",
    PATH.or_none("none"),
    "none",
    "Local file to which OpenLineage events are appended, one JSON object per line. Needs"
    " weir-spark[lineage].",
)
LINEAGE_NAMESPACE = ConfigOption(
    "weir.lineage.namespace",
    TEXT,
    "weir",
    "Namespace of the job in OpenLineage events.",
)
LINEAGE_TOKEN = ConfigOption(
    "weir.lineage.token",
    TEXT.or_none("unset"),
    "unset",
    "Token that is sent to the server, as 'Authorization: Bearer TOKEN'.",
    secret=True,
)
LINEAGE_TIMEOUT = ConfigOption(
    "weir.lineage.timeout",
    POSITIVE_DURATION,
    "5 s",
    "How long an event may take to send, and how long the driver waits for the last events when it"
    " ends.",
)
METRICS_FILE = ConfigOption(
    "weir.metrics.file",
    PATH.or_none("none"),
    "none",
    "File that gets the job's last metrics when its driver ends, in the format of 'GET /metrics'.",
)

#: Every key, in the order of this module and of the reference page.
OPTIONS: tuple[ConfigOption[Any], ...] = tuple(
    option for option in list(globals().values()) if isinstance(option, ConfigOption)
)
