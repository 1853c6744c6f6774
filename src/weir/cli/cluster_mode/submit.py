"""Sends a pipeline to YARN with ``spark-submit``.

The application master gets, besides what all nodes get (``spark/yarn.py``), one archive: the
pipeline's file, the modules beside it that it imports, and the options of the command. So secrets
are in no command line, and the driver there is run as ``weir run`` runs one here. YARN starts it
again when it fails, and each attempt goes on from the newest completed checkpoint.

Modules are found by reading: each file says which packages it imports, and what lies beside the
pipeline under such a name is taken, a package as a whole.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

import weir
from weir.adopt.reading import imported_packages
from weir.cli.loading.program import Program
from weir.config import SPARK_PREFIX
from weir.config.options import (
    CHECKPOINT_DIR,
    REST_BIND_ADDRESS,
    REST_READING_TOKEN_FILE,
    REST_TOKEN,
    REST_TOKEN_FILE,
    SAVEPOINT_DIR,
    WORKING_DIR,
)
from weir.errors import ConfigurationError
from weir.launch.options import RunOptions
from weir.rest.tokens import default_token_file, read_or_make_token
from weir.spark import yarn
from weir.spark.kafka.code import artifacts_in
from weir.spark.kafka.connector import jars
from weir.spark.session.defaults_file import read_defaults_file
from weir.spark.session.environment import check_environment, spark_home
from weir.storage.paths import is_local, scheme_of, temporary_directory

#: Where the application master has what only it gets.
PLACE = "job"
OPTIONS = "options.json"

_DRIVER = Path(__file__).parents[1] / "cluster_driver" / "application_master.py"
_FILES = "spark.yarn.dist.files"
#: As in shells: 128 + SIGINT.
_INTERRUPTED = 130


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What the application master runs."""

    #: Weir's, where the command was given.
    version: str
    #: ``FILE`` or ``FILE:job``, below ``PLACE``.
    spec: str
    options: RunOptions


def submit(spec: str, options: RunOptions, say: Callable[[str], None]) -> int:
    """Have YARN run the pipeline ``FILE[:job]``; return the exit code of ``spark-submit``.

    It is 0 once the job has ended well, or, with ``spark.yarn.submit.waitAppCompletion=false``,
    once YARN has accepted it. Raises ``WeirError`` for what can be refused here.
    """
    program = Program(spec)
    check_environment()
    home = spark_home()
    given = {key: str(value) for key, value in options.conf.items() if key.startswith(SPARK_PREFIX)}
    settings = {**yarn.defaults(), **yarn.master_defaults(), **read_defaults_file(), **given}
    master = options.master or settings.get("spark.master")
    if master != yarn.MASTER or home is None:
        raise ConfigurationError(
            f"--deploy-mode cluster is for --master yarn, but the master is {master}: leave it out,"
            " and run the command on a machine of the cluster."
        )
    _check_directories(program, options.conf)
    settings |= yarn.distributed(settings, home=home, note=say)
    connector = jars(artifacts_in(program.path), settings, say)
    if connector:
        settings["spark.jars"] = ",".join(filter(None, (settings.get("spark.jars"), *connector)))
    kept = {key: value for key, value in options.conf.items() if not _names_files(key)}
    reading = kept.get(REST_READING_TOKEN_FILE.key)
    if reading is not None:
        read_or_make_token(str(reading))
        settings[_FILES] = ",".join(filter(None, (settings.get(_FILES), str(reading))))
        kept[REST_READING_TOKEN_FILE.key] = Path(str(reading)).name
    options = replace(options, master=None, conf={**kept, **_rest(options.conf, say)})
    with temporary_directory("weir-") as directory:
        archive = Path(directory, f"{PLACE}.zip")
        _write(archive, program, options)
        archives = f"{archive}#{PLACE}"
        settings[yarn.ARCHIVES] = ",".join(filter(None, (settings.get(yarn.ARCHIVES), archives)))
        settings |= {"spark.master": yarn.MASTER, "spark.submit.deployMode": "cluster"}
        settings.setdefault("spark.app.name", f"weir: {options.name or program.path.stem}")
        try:
            return yarn.spark_submit(_DRIVER, settings, home=home, directory=Path(directory))
        except KeyboardInterrupt:
            say("what YARN has accepted goes on: see 'weir list DIR', and 'weir stop' to end it")
            return _INTERRUPTED


def _check_directories(program: Program, conf: Mapping[str, object]) -> None:
    """Refuse directories that would be in the application master's own.

    What the pipeline's own code sets shows only there (``spark/session/reach.py``): here it is
    enough that what is sent has the key in it. Beside a script's checkpoint locations are its
    checkpoints and savepoints, unless they are set.
    """
    sent = b"\n".join(path.read_bytes() for path in (program.path, *neighbours(program.path)))
    for option in (CHECKPOINT_DIR, SAVEPOINT_DIR, WORKING_DIR):
        path = conf.get(option.key)
        if path is None:
            is_by_itself = option is not WORKING_DIR and not program.imports_weir
            if is_by_itself or option.key.encode() in sent:
                continue
            path = option.default
        if scheme_of(str(path)) is None and not is_local(str(path)):
            raise ConfigurationError(yarn.deleted_with_the_master(option.key, str(path)))


def _names_files(key: str) -> bool:
    """Whether the setting names files of this machine, which YARN has under other names."""
    return key == REST_TOKEN_FILE.key or key.startswith(yarn.NAME_FILES)


def _rest(conf: Mapping[str, object], say: Callable[[str], None]) -> dict[str, str]:
    """The settings of the REST server, which others than this node reach: it wants a token."""
    file = conf.get(REST_TOKEN_FILE.key)
    if file is None:
        if REST_TOKEN.key in conf or conf.get(REST_BIND_ADDRESS.key) == "127.0.0.1":
            return {}
        file = default_token_file()
    say(f"the REST server wants the token in {file}; 'weir list DIR' shows its address")
    return {REST_TOKEN.key: read_or_make_token(str(file))}


def _write(archive: Path, program: Program, options: RunOptions) -> None:
    """Write what only the application master gets."""
    choice = "" if program.choice is None else f":{program.choice}"
    submitted = Submitted(
        version=weir.__version__, spec=f"{program.path.name}{choice}", options=options
    )
    # Files may be older than 1980, with which the times in zip files begin.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as written:
        written.writestr(OPTIONS, msgspec.json.encode(submitted))
        written.write(program.path, program.path.name)
        for module in neighbours(program.path):
            written.write(module, module.relative_to(program.directory))


def neighbours(file: Path) -> list[Path]:
    """The files beside this one that its imports need, and theirs: modules, and whole packages."""
    directory = file.resolve().parent
    unread, found = [file.resolve()], set[Path]()
    while unread:
        for name in imported_packages(unread.pop()):
            new = set(_files_of(directory / name)) - found
            found |= new
            unread += [path for path in new if path.suffix == ".py"]
    return sorted(found - {file.resolve()})


def _files_of(stem: Path) -> Iterator[Path]:
    if stem.with_suffix(".py").is_file():
        yield stem.with_suffix(".py")
    # Without an __init__, a directory may be there for something else.
    what = "*" if (stem / "__init__.py").is_file() else "*.py"
    for path in stem.rglob(what):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path
