"""Makes Spark's session without what few pipelines need, which saves seconds at each start.

*Spark ML.* PySpark's session loads every extension that a jar declares. Spark's own jars declare
one, which registers two functions of Spark ML; for their types it builds Scala's compile-time
reflection, which takes 1.1 s (2.3 s without a class archive), as long as the rest of the session.
If no other extension is declared, the session is made here without it, and the functions are
registered when ``pyspark.ml`` is first imported.

The constructor is internal to Spark. If it has changed, or if an extension is configured or
declared by another jar, Spark makes the session as usual.

*pandas.* Before PySpark passes a first value to the JVM, it asks whether the value is one of
NumPy's. It finds out from its own test tools whether NumPy is installed, and these import pandas to
learn the same of pandas: 0.7 s, while the JVM waits. Here they are imported earlier, while the JVM
starts, and take it that an installed pandas can be imported. So does ``mapInArrow``, which imports
pandas to check its version, although it works without.

*The origins of Hadoop's settings.* Hadoop remembers for each of its 1,100 settings which file it
comes from. Spark sends the settings with each scan, write and stateful step, and Hadoop compresses
each origin as a stream of its own: a copy takes 9 ms, and 3 ms without. Only Hadoop's diagnostics
ask for the origins, so they are forgotten.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weir.spark.java import JvmClasses

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from pyspark import SparkContext

_log = logging.getLogger(__name__)

_EXTENSION = "org.apache.spark.sql.SparkSessionExtensionsProvider"
_ML_FUNCTIONS = "org.apache.spark.sql.ml.InternalFunctionRegistration$"
_ML = "pyspark.ml"
_TEST_TOOLS = "pyspark.testing.utils"
#: Classes that make Hadoop read further files of settings, and all of them again.
_WITH_SETTINGS = ("org.apache.hadoop.hdfs.HdfsConfiguration", "org.apache.hadoop.mapred.JobConf")


def leave_out_pandas() -> None:
    """Import PySpark's test tools now, and make functions of Arrow possible, without pandas."""
    from pyspark.sql.pandas import functions, utils

    if _TEST_TOOLS in sys.modules or importlib.util.find_spec("pandas") is None:
        return
    # Weir's own requirements name the versions that PySpark asks for here.
    functions.require_minimum_pandas_version = lambda: None  # type: ignore[attr-defined]
    checked = utils.require_minimum_pandas_version
    # PySpark checks the version again before it uses pandas.
    utils.require_minimum_pandas_version = lambda: None
    try:
        importlib.import_module(_TEST_TOOLS)
    except Exception:
        # Whatever asks for them next will report it.
        _log.debug("PySpark's test tools cannot be imported.", exc_info=True)
    finally:
        utils.require_minimum_pandas_version = checked


def make_default_session(context: SparkContext, settings: Mapping[str, str]) -> bool:
    """Give the JVM a default session without the functions of Spark ML; return whether it has one.

    If not, ``SparkSession.builder.getOrCreate`` makes the session.
    """
    jvm = JvmClasses(context)
    # Not all of the context's settings come from Weir: see ``PYSPARK_SUBMIT_ARGS``.
    if _ML in sys.modules or context._conf.contains("spark.sql.extensions"):
        return False
    try:
        session = jvm.java_class("org.apache.spark.sql.classic.SparkSession")
        if session.getDefaultSession().isDefined() or not _only_ml_extends(jvm):
            return False
        extensions = jvm.java_class("org.apache.spark.sql.SparkSessionExtensions")()
        none, nothing = jvm.none, jvm.map({})
        made = session(context._jsc.sc(), none, none, extensions, jvm.map(settings), nothing)
        session.setDefaultSession(made)
    except Exception:
        _log.debug("Spark's session cannot be made without Spark ML.", exc_info=True)
        return False
    sys.meta_path.insert(0, _OnMlImport(jvm))
    return True


def forget_origins(context: SparkContext) -> None:
    """Make Hadoop's settings cheap to send: forget which file each of them comes from.

    Where Hadoop differs from what this expects, the settings are sent as before.
    """
    jvm = JvmClasses(context)
    try:
        for_name = jvm.java_class("java.lang.Class").forName
        for name in _WITH_SETTINGS:
            for_name(name)
        settings = context._jsc.hadoopConfiguration()
        settings.size()
        origins = for_name("org.apache.hadoop.conf.Configuration").getDeclaredField(
            "updatingResource"
        )
        origins.setAccessible(True)
        origins.get(settings).clear()
    except Exception:
        _log.debug("Hadoop's settings keep their origins.", exc_info=True)


def _only_ml_extends(jvm: JvmClasses) -> bool:
    """Whether only the jars of Spark ML declare an extension."""
    loader = jvm.java_class("java.lang.Thread").currentThread().getContextClassLoader()
    named = jvm.java_class("java.util.Collections").list(
        loader.getResources(f"META-INF/services/{_EXTENSION}")
    )
    urls = [str(url.toString()) for url in named]
    return all("/spark-mllib_" in url for url in urls)


class _OnMlImport(importlib.abc.MetaPathFinder):
    """Registers the functions of Spark ML when Python first looks for ``pyspark.ml``."""

    def __init__(self, jvm: JvmClasses) -> None:
        self._jvm = jvm

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Always None: the finders after it find the module."""
        if fullname == _ML:
            # A new list, since Python is iterating over the present list.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            self._register()
        return None

    def _register(self) -> None:
        try:
            self._jvm.java_class("java.lang.Class").forName(_ML_FUNCTIONS)
        except Exception:
            # The JVM has gone: whatever uses Spark ML next will report it.
            _log.debug("The functions of Spark ML cannot be registered.", exc_info=True)
