"""``masked``: a text without what may be a secret in it.

Configuration values, options of the JVM, log lines and stack traces reach everyone who may read the
job. Masked are, wherever they occur in a text: user and password of an address, the query of an
address, and what is assigned to a name that could be a secret's (``app.pwd=...``). Rather too much
is masked than too little. That a name is not in the list proves nothing, so a Java property is
shown only if its name is well known.

A log may have lines of megabytes, such as plans or Base64: no pattern looks far ahead from each
place of a text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

MASKED = "******"
#: Words in names of settings that may hold secrets: Flink's list, Spark's redaction rule and more.
_SECRET_NAME = (
    r"(?:passw|passphrase|pwd|secret|token|credential|authorization|cookie|signature|bearer"
    r"|(?:api|access|account|private|secret|service|shared|encryption|session)[-_.]?key"
    r"|(?<![a-z])(?:pass|auth|pin|sas|sig|dsn)(?![a-z])"
    r"|basic-auth|jaas\.config|http-headers|connection-?str)"
)
#: User and password of an address. In Azure's, what stands there is a container.
_USER = re.compile(r"(?<=://)(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)[^\s/]{0,1000}@")
_QUERY = re.compile(r"(?<=://)([^\s?#\"'<>]{0,1000}+)[?#][^\s\"'<>]++")
_ASSIGNED = re.compile(
    rf"({_SECRET_NAME}[\w.-]{{0,100}}+[\"']?\s{{0,10}}+[=:]\s{{0,10}}+)"
    r"(?:(?:bearer|basic|digest|token)\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s,;&)}\]]+)",
    re.IGNORECASE,
)
_SECRET = re.compile(_SECRET_NAME, re.IGNORECASE)
#: Java properties whose values are not secret, unless their own names say so.
_HARMLESS_PROPERTY = re.compile(
    r"-D(?:file|io\.netty|java|jdk|line|log4j2?|native|os|path|spark|sun|user|weir)\."
)


def masked(text: str) -> str:
    """The text with secrets masked, as far as they can be recognised."""
    text = _QUERY.sub(rf"\1?{MASKED}", _USER.sub(f"{MASKED}@", text))
    return _ASSIGNED.sub(rf"\1{MASKED}", text)


def masked_option(option: str) -> str:
    """An option of the JVM: without its value if that may be a secret."""
    name, found, _ = option.partition("=")
    is_property = option.startswith("-D") and not _HARMLESS_PROPERTY.match(option)
    if is_property or option.startswith("-javaagent:") or _SECRET.search(option):
        return f"{name}{found}{MASKED}" if found else masked(option)
    return masked(option)


def masked_arguments(arguments: Sequence[str]) -> str:
    """The arguments of a program as in a shell, with secrets masked.

    Also masked is the argument after an option such as ``--password``, and all of what is given to
    ``password=``, however many words it has.
    """
    shown, is_secret = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_name = re.fullmatch(r"[\w.-]+", name) is not None and _SECRET.search(name) is not None
        if is_secret:
            shown.append(MASKED)
        elif is_name and equals:
            shown.append(f"{name}={MASKED}")
        else:
            shown.append(shlex.quote(masked(argument)))
        is_secret = not is_secret and is_name and not equals and argument.startswith("-")
    return " ".join(shown)
