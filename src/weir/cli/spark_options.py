"""Options of ``weir run`` that mean what they mean to ``spark-submit``, as ``spark.*`` settings.

Like every option of the command line, they take precedence over the code. A setting that an option
and ``--conf`` give in two ways is refused: ``spark-submit`` would take one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path

import typer

from weir.spark.session.defaults_file import read_settings
from weir.storage.paths import scheme_of


def single(option: str, values: Sequence[str] | None) -> str | None:
    """The value of an option, which may be given once.

    Raises a usage error if it is given with several values.
    """
    distinct = list(dict.fromkeys(values or ()))
    if len(distinct) > 1:
        raise typer.BadParameter(
            f"{option} is given as {' and as '.join(distinct)}: give it once, a list with commas."
        )
    return distinct[0] if distinct else None


def spark_settings(
    *,
    conf: Mapping[str, str],
    master: str | None,
    py_files: Sequence[str] | None,
    jars: Sequence[str] | None,
    packages: Sequence[str] | None,
    driver_memory: Sequence[str] | None,
) -> dict[str, str]:
    """The settings of the options, by key.

    ``conf`` are the settings of ``--conf``. Raises a usage error if an option differs.
    """
    given = {
        ("--master", "spark.master"): master,
        ("--py-files", "spark.submit.pyFiles"): _py_files(single("--py-files", py_files)),
        ("--jars", "spark.jars"): single("--jars", jars),
        ("--packages", "spark.jars.packages"): single("--packages", packages),
        ("--driver-memory", "spark.driver.memory"): single("--driver-memory", driver_memory),
    }
    settings = {}
    for (option, key), value in given.items():
        if value is None:
            continue
        if conf.get(key, value) != value:
            raise typer.BadParameter(
                f"{option} is {value}, but --conf {key}={conf[key]} says something else: use only"
                " one of them."
            )
        if option != "--master":
            settings[key] = value
    return settings


def read_properties(file: Path | None) -> dict[str, str]:
    """The ``spark.*`` settings of a properties file. Raises a usage error if it cannot be read."""
    if file is None:
        return {}
    try:
        return read_settings(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.",
            param_hint="--properties-file",
        ) from error


def _py_files(value: str | None) -> str | None:
    """The files with absolute paths. Raises a usage error for a file that is not there."""
    if value is None:
        return None
    found: list[str] = []
    for text in filter(None, (part.strip() for part in value.split(","))):
        if scheme_of(text) not in (None, "file"):
            found.append(text)
            continue
        path = text.removeprefix("file://").removeprefix("file:")
        # As spark-submit does it; also absolute patterns, which ``Path.glob`` does not take.
        files = sorted(glob(path))  # noqa: PTH207
        if not files:
            raise typer.BadParameter(f"{text} does not exist.", param_hint="--py-files")
        found += [str(Path(file).absolute()) for file in files]
    return ",".join(found)
