"""Makes the pictures of the documentation: ``python -m scripts.pictures``.

1. ``weir run`` of ``pictured_job.py`` in a terminal, killed with ``kill -9`` and run again. What it
   has written to the terminal by then becomes ``docs/terminal.webp``.
2. The page of that job, with the vertex that sets rows aside: ``docs/page.webp``.
3. The cell of ``examples/notebook.ipynb`` that starts a job, run by a kernel, and what it shows,
   without the lines on standard error: ``docs/notebook.webp``.

Chromium draws the terminal's text and the notebook's cell. Two minutes on an idle machine; on a
busy one, the pictures show how long everything took.
"""

from __future__ import annotations

import base64
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import Browser, Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from rich.console import Console
from rich.text import Text
from tests.kit.browser import chromium

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COLUMNS, LINES = 104, 24
#: A command that takes longer has failed.
PATIENCE_S = 300
#: For how long a job has run when it is shown: windows have closed, and some rows have come late.
SHOWN_AFTER_S = 45

#: In the live table: its last line, and committed rows of the windows.
LAST_OF_TABLE = "bad "
COMMITTED = r"revenue +RUNNING +\d+ +[\d,]+ +[\d,]+ +[1-9]"

_CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


UNTIL_DRAWN = """
import time
while handle.progress().of("spent").rows_committed == 0:
    time.sleep(0.1)
time.sleep(5)
"""


class Screen:
    """What a terminal shows: lines of text with colours, and a cursor.

    It knows what rich's live tables use, no more.
    """

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self._row = 0

    def write(self, text: str) -> None:
        """Show what a program has written."""
        at = 0
        for control in _CONTROL.finditer(text):
            self._text(text[at : control.start()])
            at = control.end()
            arguments, command = control.groups()
            if command == "A":
                self._row = max(0, self._row - int(arguments or 1))
            elif command == "K":
                self.lines[self._row] = ""
            elif command == "m":
                self.lines[self._row] += control.group()
        self._text(text[at:])

    def _text(self, text: str) -> None:
        for part in re.split(r"(\n)", text.replace("\r", "")):
            if part != "\n":
                self.lines[self._row] += part
                continue
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")


class Terminal:
    """A command that runs in a terminal of its own. A context manager, which kills it."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self.screen = Screen()
        mine, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        self._written = ""
        threading.Thread(target=self._read, args=(mine,), daemon=True).start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has written this."""
        deadline = time.monotonic() + PATIENCE_S
        while (match := re.search(pattern, self._written)) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{pattern!r} never came:\n{self._written}")
            time.sleep(0.1)
        return match

    def shown(self) -> list[str]:
        """The lines on the screen, once the live table is whole."""
        while True:
            lines = list(self.screen.lines)
            if any(line.startswith(LAST_OF_TABLE) for line in lines[-2:]):
                return lines
            time.sleep(0.1)

    def _read(self, terminal: int) -> None:
        try:
            while data := os.read(terminal, 65_536):
                text = data.decode(errors="replace")
                self._written += text
                self.screen.write(text)
        except OSError:
            pass  # the command has ended
        finally:
            os.close(terminal)


def terminal_page(prompts: list[tuple[str, list[str]]]) -> str:
    """A page with commands and what they have written."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for command, lines in prompts:
        console.print(Text(f"$ {command}", style="bold"), soft_wrap=True)
        for line in lines:
            console.print(Text.from_ansi(line), soft_wrap=True)
    code = console.export_html(inline_styles=True, code_format="{code}")
    return _page(
        f"<pre>{code}</pre>",
        "body { background: #1d2330; } pre { margin: 0; color: #dfe4ee; white-space: pre-wrap;"
        " font: 14px/1.45 'DejaVu Sans Mono', monospace; }",
    )


def notebook_page(cells: list[Any]) -> str:
    """A page with the cells of a notebook and what a kernel has answered."""
    style = HtmlFormatter(nowrap=True)
    parts = []
    for cell in cells:
        code = highlight(cell.source, PythonLexer(), style)
        parts.append(
            f'<div class="cell"><span>[{cell.execution_count}]:</span><pre>{code}</pre></div>'
        )
        views = [output.data["text/html"] for output in cell.outputs if "data" in output]
        parts += [f'<div class="cell"><span></span><div>{view}</div></div>' for view in views]
    return _page(
        "".join(parts),
        style.get_style_defs("pre")
        + ".cell { display: grid; grid-template-columns: 3rem 1fr; margin: .5rem 0; }"
        ".cell > span { color: #58657a; font: 13px/1.5 'DejaVu Sans Mono', monospace; }"
        "pre { margin: 0; padding: .5rem; border: 1px solid #dfe3ea; background: #f7f8fa;"
        " font: 13px/1.5 'DejaVu Sans Mono', monospace; }",
    )


def _page(body: str, style: str) -> str:
    return (
        f'<!doctype html><meta charset="utf-8"><style>body {{ margin: 0; padding: 1rem;'
        f" font: 14px/1.5 'DejaVu Sans', sans-serif; }} {style}</style><body>{body}"
    )


def draw(browser: Browser, html: str, file: Path) -> None:
    """Take a picture of a page of one's own."""
    page = browser.new_page(viewport={"width": 960, "height": 100})
    page.set_content(html)
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": 960, "height": height})
    save(page, file)


def save(page: Page, file: Path) -> None:
    """Write what a page shows, and close it. WebP, which Playwright itself does not write."""
    session = page.context.new_cdp_session(page)
    picture = session.send("Page.captureScreenshot", {"format": "webp", "quality": 85})
    file.write_bytes(base64.b64decode(picture["data"]))
    page.close()


def run_and_show(browser: Browser, directory: Path) -> None:
    """The terminal and the page."""
    shutil.copy(ROOT / "scripts" / "pictured_job.py", directory / "orders.py")
    command = [str(Path(sys.executable).with_name("weir")), "run", "orders.py"]
    with Terminal(command, directory) as first:
        first.wait_for(COMMITTED)
        killed = first.shown()
    with Terminal(command, directory) as second:
        shown = _show(browser, second)
    again = [("weir run orders.py &", killed), ("kill -9 $!", []), ("weir run orders.py", shown)]
    draw(browser, terminal_page(again), DOCS / "terminal.webp")


def _show(browser: Browser, second: Terminal) -> list[str]:
    """Save the page; return what the terminal shows at the same time."""
    address = second.wait_for(r"REST server: (\S+)")[1]
    second.wait_for(COMMITTED)
    time.sleep(SHOWN_AFTER_S)
    page = browser.new_page(viewport={"width": 1280, "height": 1030})
    page.goto(f"{address}/#/graph/revenue")
    page.locator("main .loading").first.wait_for(state="detached")
    page.get_by_text("came late").wait_for()
    save(page, DOCS / "page.webp")
    return second.shown()


def show_notebook(browser: Browser, directory: Path) -> None:
    """The cell that starts a job, and the view below it."""
    shutil.copy(ROOT / "examples" / "sample_input.py", directory)
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"][:2]
    code.append(nbformat.v4.new_code_cell(UNTIL_DRAWN))
    code.append(nbformat.v4.new_code_cell("handle.suspend()"))
    notebook.cells = code
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    place = {"metadata": {"path": str(directory)}}
    client = NotebookClient(notebook, timeout=PATIENCE_S, resources=place)
    with client.setup_kernel(env=environment):
        for number, cell in enumerate(code[:3]):
            client.execute_cell(cell, number)
        draw(browser, notebook_page(code[1:2]), DOCS / "notebook.webp")
        client.execute_cell(code[3], 3)


def main() -> None:
    """Make all pictures."""
    with chromium() as browser, tempfile.TemporaryDirectory(prefix="weir-") as directory:
        for name, show in (("orders", run_and_show), ("notebook", show_notebook)):
            place = Path(directory) / name
            place.mkdir()
            show(browser, place)


if __name__ == "__main__":
    main()
