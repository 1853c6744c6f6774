"""``weir init``: a directory with a pipeline that runs as it stands.

``files/`` has what is written, with ``@NAME@`` and other words to replace; ``sample.py`` makes the
input.
"""

from weir.cli.project.write import write_project

__all__ = ["write_project"]
