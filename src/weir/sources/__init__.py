"""Sources that Weir reads itself, for ``Job.source``; all others are Spark's."""

from weir.sources.base import SplitSource
from weir.sources.files import FileSource

__all__ = ["FileSource", "SplitSource"]
