"""Docstrings of the API reference: comments of fields, literal blocks, and links to pages.

An extension of Griffe, which reads the source for the site:

- a comment of lines that begin with ``#:`` is the docstring of the field below it;
- a paragraph that ends in ``::`` introduces code;
- ``PROTOCOL P20`` and ``the documentation's page SOURCES`` are links;
- requirements (``MISSION G4``) are for those who change Weir, and left out.
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import griffe

_COMMENT = re.compile(r"\s*#: ?(.*)")
_LITERAL = re.compile(r"^( *)(.*)::\n\n((?:\1 +.*\n|\n)+)", re.MULTILINE)
_REQUIREMENT = re.compile(r"\s+\(MISSION [A-Z]\d+(?:(?:,| and) [A-Z]\d+)*\)")


class Docstrings(griffe.Extension):
    """Makes Markdown of each docstring."""

    def on_attribute_instance(
        self, *, node: Any, attr: griffe.Attribute, agent: Any, **kwargs: Any
    ) -> None:
        """Give a field the comment above it."""
        if attr.docstring is not None or attr.lineno is None:
            return
        above = attr.lines_collection[attr.filepath][: attr.lineno - 1]
        comment: list[str] = []
        while above and (line := _COMMENT.fullmatch(above.pop())):
            comment.insert(0, line[1])
        if comment:
            attr.docstring = griffe.Docstring(markdown("\n".join(comment)), parent=attr)

    def on_instance(self, *, node: Any, obj: griffe.Object, agent: Any, **kwargs: Any) -> None:
        """Rewrite a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """A docstring as Markdown."""
    text = _REQUIREMENT.sub("", docstring)
    text = re.sub(r"\bPROTOCOL (P\d+)", r"[PROTOCOL \1](../PROTOCOL.md)", text)
    text = re.sub(
        r"\b([Tt]he)\s+documentation's\s+page\s+(\w+)",
        lambda page: f"{page[1]} page [{page[2].capitalize()}](../{page[2]}.md)",
        text,
    )
    return _LITERAL.sub(_fenced, f"{text}\n").rstrip("\n")


def _fenced(literal: re.Match[str]) -> str:
    """A paragraph and the code that follows it."""
    indent, before, code = literal.groups()
    code = textwrap.dedent(code).strip("\n")
    try:
        ast.parse(code)
        language = "python"
    except SyntaxError:
        language = "text"
    fenced = textwrap.indent(f"```{language}\n{code}\n```\n", indent)
    return f"{indent}{before}:\n\n{fenced}\n" if before else f"{fenced}\n"
