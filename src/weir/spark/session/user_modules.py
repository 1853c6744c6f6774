"""The pipeline's own modules, for Spark's Python workers, which import what user code refers to.

A worker on this machine finds them by ``PYTHONPATH``. Workers of a cluster get a zip file of those
that the driver has imported, as from ``--py-files``; a module that is first imported inside of a
function has to be named there by the user.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weir.runtime.failures import Frame


def prepend_to_module_path(directory: str) -> None:
    """Import from there, in this process and in the workers that Spark starts on this machine."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if directory not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([directory, *filter(None, inherited)])


def put_first_on_module_path(directory: str) -> None:
    """Import from there before anywhere else, here and in the workers of this machine."""
    sys.path[:] = [directory, *(other for other in sys.path if other != directory)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = (other for other in inherited if other not in {"", directory})
    os.environ["PYTHONPATH"] = os.pathsep.join([directory, *others])


def script_file() -> Path | None:
    """The script that this process runs, under Python or ``weir run``; None for anything else."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or main.__spec__ is not None or not file.endswith(".py"):
        return None
    return Path(file)


def add_script_directory() -> None:
    """Make what lies beside the script that this process runs, if any, importable for workers."""
    script = script_file()
    if script is not None:
        prepend_to_module_path(str(script.resolve().parent))


@contextmanager
def py_files_found(py_files: str) -> Iterator[None]:
    """Import from the files of ``spark.submit.pyFiles``, after what lies beside the script.

    As ``spark-submit`` does it: from archives as they are, and from copies of ``.py`` files. What
    is not on this machine is left to Spark.
    """
    files = [Path(name) for name in py_files.split(",") if Path(name).is_absolute()]
    modules = [file for file in files if file.suffix == ".py"]
    with tempfile.TemporaryDirectory(prefix="weir-py-files-") as directory:
        for module in modules:
            shutil.copy(module, directory)
        found = [str(file) for file in files if file not in modules]
        for entry in [*found, *([directory] if modules else [])]:
            sys.path.insert(1, entry)
            inherited = os.environ.get("PYTHONPATH", "")
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [inherited, entry]))
        yield


def workers_find_weir() -> bool:
    """Whether the workers that Spark starts on this machine will find Weir.

    If it is not installed they get its path, but a JVM that already runs does not learn of
    it.
    """
    from pyspark import SparkContext

    directory = str(Path(__file__).resolve().parents[3])
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if directory in (*site.getsitepackages(), site.getusersitepackages(), *inherited):
        return True
    if SparkContext._gateway is not None:
        return False
    prepend_to_module_path(directory)
    return True


def write_modules(path: Path) -> list[str]:
    """Write the user's modules that are loaded into a zip file; return their names.

    Of a package it gets all modules. A module counts as the user's if it is neither installed nor
    part of Python.
    """
    tops = {name.partition(".")[0] for name in list(sys.modules)} - {"__main__", "weir"}
    found = {}
    for name in sorted(tops):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or not file.endswith(".py"):
            continue
        if Frame(file=str(Path(file).resolve()), line=0, function="").is_the_users:
            found[name] = Path(file)
    # Modules may be older than 1980, with which the times in zip files begin.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for file in found.values():
            package = file.parent if file.name == "__init__.py" else None
            for module in sorted(package.rglob("*.py")) if package else [file]:
                archive.write(module, module.relative_to((package or file).parent))
    return list(found)
