"""Arguments and options of the command line that commands share or that have long help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.config.values import RecoveryClaimMode

Address = Annotated[
    str,
    typer.Option(
        "--address",
        "-m",
        envvar="WEIR_REST",
        help="REST server of the job's driver, as 'weir run' prints it.",
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="WEIR_REST_TOKEN_FILE",
        help=(
            "File with the REST server's token, if it wants one. Not needed for jobs of your own on"
            " this machine; WEIR_REST_TOKEN may hold the token itself."
        ),
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        envvar="WEIR_REST_CA_FILE",
        help=(
            "Certificates in PEM by which a REST server with HTTPS is known; without it the usual"
            " ones."
        ),
    ),
]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Id, unique prefix of an id, or name of the job.")
]
Directory = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]",
        help=(
            "Directory below which the savepoint is made; without it"
            " execution.checkpointing.savepoint-dir is used."
        ),
    ),
]

CoordinatedOperator = Annotated[
    str,
    typer.Argument(
        metavar="OPERATOR", help="Uid, or name, of the step whose coordinator is meant."
    ),
]
CoordinatorRequest = Annotated[
    str,
    typer.Argument(
        metavar="JSON", help="What it is asked for: a JSON object, as it understands it."
    ),
]

Pipeline = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:job]", help="Python file that builds a weir.Job, and the job's name in it."
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master URL; without it spark.master of the configuration, else local[*]."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="K=V", help="A key of Flink, weir.* or spark.*; may be repeated."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="File of configuration keys, one 'key: value' a line."
    ),
]
FromSavepoint = Annotated[
    str | None,
    typer.Option(
        "--from-savepoint",
        "-s",
        metavar="PATH",
        help="Start from a savepoint or retained checkpoint.",
    ),
]
ClaimMode = Annotated[
    RecoveryClaimMode | None,
    typer.Option(
        "--claim-mode",
        "--claimMode",
        case_sensitive=False,
        help=(
            "Who owns the snapshot of --from-savepoint: the user (NO_CLAIM), or the job, which may"
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
        help="Leave state behind whose step the pipeline no longer has.",
    ),
]
AcceptDuplicates = Annotated[
    bool,
    typer.Option(
        "--accept-duplicates",
        help=(
            "Begin from a snapshot, or use an older checkpoint in place of a damaged one, although"
            " sinks have committed beyond it: rows may be there twice, or be left out."
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
        help="Port of the REST server; 0: any free one.",
    ),
]
Claim = Annotated[
    bool,
    typer.Option(
        "--claim", help="Short for --claim-mode CLAIM: the job owns the snapshot from now on."
    ),
]
SavepointDir = Annotated[
    str | None,
    typer.Option(
        "--savepoint-dir",
        "-p",
        metavar="DIR",
        help=(
            "Directory below which the savepoint is made; without it"
            " execution.checkpointing.savepoint-dir is used."
        ),
    ),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain",
        "-d",
        help=(
            "End as if the input were over: every window and timer fires before the savepoint. The"
            " job cannot go on from it."
        ),
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Make it anew, even if there is one that fits.")
]
OptionalJobName = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]", help="Id, unique prefix of an id, or name of the job; not with --dispose."
    ),
]
Dispose = Annotated[
    str | None,
    typer.Option(
        "--dispose",
        "-d",
        metavar="PATH",
        help=(
            "Delete the savepoint at this path instead of taking one. Needs no running job, and"
            " asks none: make sure that no job was started from it that has not completed a"
            " checkpoint since."
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
            "Show the state of this operator (uid, name or vertex): what a Python operator keeps,"
            " else Spark's keyed state of its vertex."
        ),
    ),
]
StateQuery = Annotated[
    str | None,
    typer.Option(
        "--sql",
        metavar="QUERY",
        help=(
            "Answer this query over the operator's state. The view is named state, and has the"
            " columns key, value and partition_id. A stream-stream join has the views left and"
            " right, transformWithState one for each state variable and timers; several stateful"
            " operators in one vertex have their number behind: state_0, left_1."
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
            "Rows of each store, or of the answer, to show; without it 20 in a table, and all with"
            " --json."
        ),
    ),
]
