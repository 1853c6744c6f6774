"""What the machine's Hadoop configuration says, read without a JVM.

``HADOOP_CONF_DIR``, and after it ``YARN_CONF_DIR``, are where Spark looks as well. Settings that
only Spark has (``spark.hadoop.*``) are not known here.
"""

from __future__ import annotations

import os
from pathlib import Path

#: In this order.
VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
#: The default file system's key, and its name of old.
_DEFAULT = ("fs.defaultFS", "fs.default.name")


def default_file_system() -> str | None:
    """``fs.defaultFS`` without a path, such as ``hdfs://nn:8020``.

    None if no ``core-site.xml`` names one, or if only Hadoop itself can read what it says.
    """
    for variable in VARIABLES:
        directory = os.environ.get(variable)
        values = {} if not directory else _properties(Path(directory, "core-site.xml"))
        for key in _DEFAULT:
            if key in values:
                scheme, separator, rest = values[key].partition("://")
                authority = rest.partition("/")[0]
                known = separator and "$" not in authority
                return f"{scheme.lower()}://{authority}" if known else None
    return None


def _properties(path: Path) -> dict[str, str]:
    # Not at the top: few paths need it.
    from xml.etree import ElementTree

    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        # Hadoop refuses a damaged file itself.
        return {}
    return {
        (one.findtext("name") or "").strip(): (one.findtext("value") or "").strip()
        for one in root.iter("property")
    }
