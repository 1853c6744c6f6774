"""Arguments and options of the command line that commands share or that have long help texts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from weir.config.values import LogFormat, RecoveryClaimMode


class DeployMode(StrEnum):
    """Where the driver runs, in Spark's words."""

    CLIENT = "client"
    CLUSTER = "cluster"


Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-m",
        envvar="WEIR_REST",
        help=(
            "REST address of the job's driver, as printed by 'weir run'; default: all of your"
            " drivers on this machine, or else http://127.0.0.1:8081."
        ),
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="WEIR_REST_TOKEN_FILE",
        help=(
            "File with the REST server's token, if it requires a token. Not needed for your own"
            " jobs on this machine. WEIR_REST_TOKEN can hold the token itself."
        ),
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        envvar="WEIR_REST_CA_FILE",
        help=("CA certificates (PEM) to verify an HTTPS REST server; default: public CAs."),
    ),
]
CheckpointDirectory = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]",
        help="Checkpoint directory; default: that of execution.checkpointing.dir.",
    ),
]
CheckpointDirectoryOption = Annotated[
    str | None,
    typer.Option(
        "--directory",
        metavar="DIR",
        help="Checkpoint directory of a job without a driver; default: that of"
        " execution.checkpointing.dir.",
    ),
]
HistoryPort = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 picks a free port.")
]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Job name, id, or unique prefix of its id.")
]
RunningJobName = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Job name, id, or unique prefix of its id; default: the only job that runs.",
    ),
]
Directory = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]",
        help="Parent directory of the savepoint; default: execution.checkpointing.savepoint-dir.",
    ),
]

CoordinatedOperator = Annotated[
    str,
    typer.Argument(metavar="OPERATOR", help="Name or uid of the coordinator's step."),
]
CoordinatorRequest = Annotated[
    str,
    typer.Argument(
        metavar="JSON", help="Request to send: a JSON object, in the coordinator's own format."
    ),
]

Pipeline = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:job]",
        help=(
            "Python file that builds a weir.Job; append the job's variable or name if there are"
            " several."
        ),
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- ARGS...]",
        help="Arguments of the file, which has them as sys.argv[1:]; options of Weir come before.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark master URL; default: spark.master from the configuration or from"
        " spark-defaults.conf, else local[*]."
    ),
]
DeployModeOption = Annotated[
    DeployMode,
    typer.Option(
        "--deploy-mode",
        case_sensitive=False,
        help=(
            "Where the driver runs. client: in this process; cluster: in the application master of"
            " --master yarn, which gets the pipeline, the modules beside it that it imports, Weir"
            " and the other packages of this Python (of --py-files, --jars and spark.yarn.dist.*"
            " too), and starts the driver again when it fails."
        ),
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="K=V", help="Set a Flink, weir.* or spark.* key; repeatable."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration file with one 'key: value' per line."
    ),
]
JobNameOption = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="NAME", help="Name of the job; replaces the one in the file."),
]
PyFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--py-files",
        metavar="FILES",
        help="Comma-separated .py, .zip and .egg files that the file and Spark's workers import.",
    ),
]
Jars = Annotated[
    list[str] | None,
    typer.Option(
        "--jars", metavar="FILES", help="Comma-separated jars for the driver and the executors."
    ),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--packages",
        metavar="COORDINATES",
        help="Comma-separated Maven coordinates of jars: groupId:artifactId:version.",
    ),
]
PropertiesFile = Annotated[
    Path | None,
    typer.Option(
        "--properties-file",
        metavar="FILE",
        help="File of spark.* settings, as spark-defaults.conf; --conf and --config override it.",
    ),
]
DriverMemory = Annotated[
    list[str] | None,
    typer.Option(
        "--driver-memory", metavar="MEMORY", help="Memory of the driver's JVM, such as 4g."
    ),
]
FromSavepoint = Annotated[
    str | None,
    typer.Option(
        "--from-savepoint",
        "-s",
        metavar="PATH",
        help=(
            "Start from a savepoint or retained checkpoint; 'latest': from the savepoint with which"
            " the job was stopped, if it has not gone on since, else as without this option."
        ),
    ),
]
UntilIdle = Annotated[
    bool,
    typer.Option(
        "--until-idle",
        help=(
            "Read what all sources have now, commit it and end; the same command goes on from"
            " there."
        ),
    ),
]
DrainAtEnd = Annotated[
    bool,
    typer.Option(
        "--drain",
        help=(
            "Let every window and timer fire at the end of a run that reads what there is now; the"
            " job is then finished."
        ),
    ),
]
ClaimMode = Annotated[
    RecoveryClaimMode | None,
    typer.Option(
        "--claim-mode",
        "--claimMode",
        case_sensitive=False,
        help=(
            "Who owns the snapshot of --from-savepoint: you (NO_CLAIM), or the job, which may"
            " delete it (CLAIM)."
        ),
    ),
]
AllowNonRestoredState = Annotated[
    bool,
    typer.Option(
        "--allow-non-restored-state",
        "--allowNonRestoredState",
        "-n",
        help="Skip state of steps that the pipeline no longer has.",
    ),
]
AcceptDuplicates = Annotated[
    bool,
    typer.Option(
        "--accept-duplicates",
        help=(
            "Start from a snapshot, or fall back from a damaged checkpoint to an older checkpoint,"
            " even if sinks have committed past it: rows may be duplicated or missing."
        ),
    ),
]
AcceptChangedState = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-changed-state",
        metavar="STEP",
        help=(
            "Let this step go on with its state, or from its positions, although its expressions,"
            " its input or its target have changed; repeatable."
        ),
    ),
]
AcceptLostRows = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-lost-rows",
        metavar="STEP",
        help=(
            "Let this source go on at the earliest rows that are there, although rows that it has"
            " not read are gone: deleted by Kafka's retention, or with their topic; repeatable."
        ),
    ),
]
ReadApart = Annotated[
    list[str] | None,
    typer.Option(
        "--read-apart",
        metavar="QUERY",
        help=(
            "Let this query, which is new in a script, read from the start of its input, with a"
            " reading of its own; repeatable."
        ),
    ),
]
RestPort = Annotated[
    int | None,
    typer.Option(
        "--rest-port",
        metavar="N",
        min=0,
        max=65535,
        help="REST server port; 0 picks a free port.",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        case_sensitive=False,
        help="Form of the log on standard error; json: one object per line, and nothing else.",
    ),
]
Claim = Annotated[
    bool,
    typer.Option(
        "--claim", help="Short for --claim-mode CLAIM: the job takes ownership of the snapshot."
    ),
]
SavepointDir = Annotated[
    str | None,
    typer.Option(
        "--savepoint-dir",
        "-p",
        metavar="DIR",
        help="Parent directory of the savepoint; default: execution.checkpointing.savepoint-dir.",
    ),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain",
        "-d",
        help=(
            "End the input first: every window and timer fires before the savepoint, and the job"
            " cannot resume from it."
        ),
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Recreate the archive even if a matching archive exists.")
]
OptionalJobName = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]", help="Job name, id, or unique prefix of its id; omit with --dispose."
    ),
]
Dispose = Annotated[
    str | None,
    typer.Option(
        "--dispose",
        "-d",
        metavar="PATH",
        help=(
            "Delete the savepoint at this path instead of taking a savepoint. Does not check for"
            " jobs that still need it: first make sure that every job started from it has completed"
            " a checkpoint since."
        ),
    ),
]
SnapshotPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="Directory of a checkpoint or savepoint, or its _metadata file."
    ),
]
StateOperator = Annotated[
    str | None,
    typer.Option(
        "--operator",
        metavar="NAME",
        help=(
            "Show the state of this operator (uid, name or vertex): a Python operator's own"
            " state, otherwise Spark's keyed state of its vertex."
        ),
    ),
]
StateQuery = Annotated[
    str | None,
    typer.Option(
        "--sql",
        metavar="QUERY",
        help=(
            "Query the operator's state. The view is named state and has the columns key, value"
            " and partition_id. A stream-stream join has the views left and right;"
            " transformWithState has a view per state variable, and timers. If a vertex has several"
            " stateful operators, their numbers are appended: state_0, left_1."
        ),
    ),
]
StateLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=1,
        help=(
            "Maximum rows to show per store or query result; default: 20 in a table, all with"
            " --json."
        ),
    ),
]
