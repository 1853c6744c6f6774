"""``SessionOnDemand``: a session that is made when PySpark first needs it.

Types given as text, and columns, need the JVM: ``@F.udf("long")``, ``F.col("id")`` and
``StructType.fromDDL("id long")`` at the top of a file need a session before any job runs. So while
a file is executed, PySpark gets one the first time that it looks for a context and there is none. A
file that asks for nothing starts no JVM.

1. PySpark finds the context in one attribute of ``SparkContext``, which is None before the first.
   There, a descriptor makes the session. ``SparkContext`` itself replaces the descriptor when it
   sets the attribute.
2. The modules that make contexts and sessions get None, and so does code that is not PySpark's and
   asks whether there is a context: a file that makes its own session makes it as ever.
3. PySpark may be imported by the file itself, so the descriptor is set when the class exists.

The settings of a job that is built after that are compared with the session's (``check``): what can
no longer be set must not be lost in silence.
"""

from __future__ import annotations

import importlib.abc
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from weir.errors import ConfigurationError

if TYPE_CHECKING:
    from weir.spark.session.start import LazySession

_CONTEXT_MODULE = "pyspark.core.context"
_ATTRIBUTE = "_active_spark_context"
#: The modules that make contexts and sessions, and so must see that there is none.
_MAKERS = frozenset({_CONTEXT_MODULE, "pyspark.sql.session"})
#: Prefixes of the settings that a session reads. It takes others too, mostly without any effect.
_OF_SESSIONS = ("spark.sql.", "spark.databricks.")


class SessionOnDemand:
    """A context manager: while it is entered, PySpark gets the session that it asks for."""

    def __init__(self, lazy: Callable[[], LazySession], asked: Callable[[FrameType], str]) -> None:
        """``lazy`` is called once, when a session is needed.

        ``asked`` gets the frame that needs it, before that, and returns its place in the user's
        code.
        """
        self._new_lazy = lazy
        self._lazy: LazySession | None = None
        self._asked = asked
        #: Where the session was asked for; None unless it was made here.
        self.place: str | None = None
        self._is_making = False
        self._lock = threading.RLock()
        self._finder = _OnImport(self._set)

    def __enter__(self) -> SessionOnDemand:
        loaded = sys.modules.get(_CONTEXT_MODULE)
        if loaded is not None:
            self._set(loaded)
        else:
            sys.meta_path.insert(0, self._finder)
        return self

    def __exit__(self, *_: object) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        loaded = sys.modules.get(_CONTEXT_MODULE)
        if loaded is not None and isinstance(vars(loaded.SparkContext)[_ATTRIBUTE], _Descriptor):
            setattr(loaded.SparkContext, _ATTRIBUTE, None)
        if self._lazy is not None:
            self._lazy.close()

    def get(self, frame: FrameType) -> Any:
        """The context for code in this frame, or None."""
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("pyspark.") or module in _MAKERS:
            return None
        with self._lock:
            if self._is_making:
                return None
            known = vars(sys.modules[_CONTEXT_MODULE].SparkContext)[_ATTRIBUTE]
            if not isinstance(known, _Descriptor):
                # Another thread was faster.
                return known
            self._is_making = True
            try:
                self.place = self._asked(frame)
                return self._made()
            finally:
                self._is_making = False

    def check(self, conf: Mapping[str, str], master: str | None) -> None:
        """Apply a job's settings to the session, if it was made here.

        Raises ``ConfigurationError`` with the keys that come too late.
        """
        if self._lazy is None:
            return
        session = self._lazy.get()
        made_with = {**self._lazy.conf, "spark.master": str(session.sparkContext.master)}
        wanted = {**conf, **({} if master is None else {"spark.master": master})}
        late = [
            key
            for key, value in wanted.items()
            if made_with.get(key) != value and not _takes(session, key, value)
        ]
        if late:
            raise ConfigurationError(
                f"{', '.join(sorted(late))} of the job come too late, since {self.place} has"
                " already started Spark: give them on the command line (--conf KEY=VALUE,"
                " --properties-file), or start Spark later, with a type object such as LongType()"
                " in place of a type as text, and columns inside of the step's function."
            )

    def _made(self) -> Any:
        on_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT)
        self._lazy = self._new_lazy()
        try:
            return self._lazy.get().sparkContext
        finally:
            if on_main:
                # A context that is made on the main thread takes over Ctrl-C.
                signal.signal(signal.SIGINT, before)

    def _set(self, module: ModuleType) -> None:
        if vars(module.SparkContext)[_ATTRIBUTE] is None:
            setattr(module.SparkContext, _ATTRIBUTE, _Descriptor(self))


class _Descriptor:
    """The attribute's value."""

    def __init__(self, on_demand: SessionOnDemand) -> None:
        self._on_demand = on_demand

    def __get__(self, instance: object, owner: type) -> Any:
        return self._on_demand.get(sys._getframe(1))


class _OnImport(importlib.abc.MetaPathFinder):
    """Hands on the module of ``SparkContext`` once it is imported."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self._imported = imported

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's specification, with a loader that hands it on; None for any other module."""
        if fullname != _CONTEXT_MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _HandingOn(spec.loader, self._imported)
        return spec


class _HandingOn(importlib.abc.Loader):
    """A loader that hands on the module once another has loaded it."""

    def __init__(
        self, loader: importlib.abc.Loader, imported: Callable[[ModuleType], None]
    ) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the other."""
        self._loader.exec_module(module)
        self._imported(module)


def _takes(session: Any, key: str, value: str) -> bool:
    """Whether the setting has this value in the session, or can still get it."""
    if session.sparkContext.getConf().get(key) == value:
        return True
    if not key.startswith(_OF_SESSIONS):
        return False
    try:
        session.conf.set(key, value)
    except Exception:
        # Spark refuses what a session cannot change.
        return False
    return True
