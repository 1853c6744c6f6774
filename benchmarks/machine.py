"""Describes the machine that a figure was measured on, in one line."""

from __future__ import annotations

import os
import platform
import re
import subprocess

import psutil
import pyspark


def describe_machine() -> str:
    """Cores, memory, and the versions of Python, Spark and Java."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    version = re.search(r'version "([^"]+)"', output)
    return (
        f"machine cores={os.cpu_count()} memory={psutil.virtual_memory().total / 2**30:.1f}GiB"
        f" python={platform.python_version()} spark={pyspark.__version__}"
        f" java={version[1] if version else 'unknown'} load={os.getloadavg()[0]:.2f}"
    )
