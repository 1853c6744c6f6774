"""Makes Spark's session without what only Spark ML needs: a second less at each start.

PySpark's session loads every extension that a jar names to it. Spark's own jars name one, which
registers two functions of Spark ML; for their types it builds Scala's compile-time reflection,
which takes 1.1 s (2.3 s without a class archive), as long as the rest of the session. Here the
session is made without it, where nothing else is named, and ``pyspark.ml`` registers the functions
when it is first imported.

The constructor is internal to Spark. Where it is another one, or where an extension is configured
or named by another jar, Spark makes the session as ever.
"""

from __future__ import annotations

import importlib.abc
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weir.spark.jvm import JvmClasses

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from pyspark import SparkContext

_log = logging.getLogger(__name__)

_EXTENSION = "org.apache.spark.sql.SparkSessionExtensionsProvider"
_ML_FUNCTIONS = "org.apache.spark.sql.ml.InternalFunctionRegistration$"
_ML = "pyspark.ml"


def make_default_session(context: SparkContext, settings: Mapping[str, str]) -> bool:
    """Give the JVM a default session without the functions of Spark ML; whether there is one now.

    False where Spark has to make it: ``SparkSession.builder.getOrCreate`` then does.
    """
    jvm = JvmClasses(context)
    if _ML in sys.modules or "spark.sql.extensions" in settings:
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


def _only_ml_extends(jvm: JvmClasses) -> bool:
    """Whether the jars of Spark ML are the only ones that name an extension."""
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
        """Never finds anything: the finders after this one do."""
        if fullname == _ML:
            # Another list, since Python is going through this one.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            self._register()
        return None

    def _register(self) -> None:
        try:
            self._jvm.java_class("java.lang.Class").forName(_ML_FUNCTIONS)
        except Exception:
            # A JVM that has gone: whatever is done with Spark ML says so.
            _log.debug("The functions of Spark ML cannot be registered.", exc_info=True)
