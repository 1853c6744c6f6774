"""What is masked in texts that others may read (weir/masking.py)."""

from __future__ import annotations

import pytest

from weir.config import Configuration
from weir.errors import ConfigurationError
from weir.masking import MASKED, masked, masked_arguments, masked_option
from weir.monitoring.log_buffer import LogBuffer

SECRETS = [
    "http://me:hunter2@host:1/x?key=hunter2#hunter2",
    "jdbc:postgresql://host/db?user=hunter2&password=hunter2",
    "jdbc:sqlserver://host;user=me;password=hunter2;x=1",
    "https://hunter2@host",
    "redis://:hunter2@host/0 and amqp://me:hun:hunter2@host",
    "Client error for url 'http://host/x?sig=hunter2': retry",
    "app.pwd=hunter2",
    "APP_PASSPHRASE: hunter2",
    '{"api_key": "hunter2 hunter2", "x": 1}',
    "Authorization: Bearer hunter2",
    "auth=Basic hunter2",
    "fs.azure.account.key = hunter2",
    "aws_secret_access_key='hunter2 hunter2'",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_secret_is_left_in_a_text(text: str) -> None:
    """User, password and query of an address, and what is assigned to the name of a secret."""
    assert "hunter2" not in masked(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "/data/in",
        "s3://bucket/a/b",
        "abfss://container@account.dfs.core.windows.net/a",
        "http://127.0.0.1:8081/jobs",
        "KeyError: 'author'",
        "10 s",
        "checkpoint 7 completed",
        "author: me, passing: 3",
    ],
)
def test_a_text_without_secrets_stays(text: str) -> None:
    """Logs stay readable."""
    assert masked(text) == text


@pytest.mark.parametrize("word", ["a", "a.b-", "://", "password", "key ", "https://u", "://a?"])
def test_a_line_of_megabytes_is_masked_in_one_pass(word: str) -> None:
    """A log may have one; time that grows with the square of its length would be days."""
    text = word * 400_000
    assert "hunter2" not in masked(f"{text} pwd=hunter2")


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("-Xmx1g", "-Xmx1g"),
        ("-XX:+UseSerialGC", "-XX:+UseSerialGC"),
        ("-Dfile.encoding=UTF-8", "-Dfile.encoding=UTF-8"),
        ("-Dapp.pwd=hunter2", "-Dapp.pwd=******"),
        ("-Dapp.auth=Basic:hunter2", "-Dapp.auth=******"),
        ("-Dapp.licence=hunter2", "-Dapp.licence=******"),
        ("-Dspark.ssl.keyPassword=hunter2", "-Dspark.ssl.keyPassword=******"),
        ("-Djava.rmi.url=rmi://me:hunter2@host/x", "-Djava.rmi.url=rmi://******@host/x"),
        ("-javaagent:agent.jar=key:hunter2", "-javaagent:agent.jar=******"),
        ("-XX:OnError=curl https://me:hunter2@host/", "-XX:OnError=curl https://******@host/"),
        ("-verbose", "-verbose"),
    ],
)
def test_an_option_of_the_jvm_is_shown_without_what_may_be_secret(option: str, shown: str) -> None:
    """A property's name proves only if it is well known that its value is not secret."""
    assert masked_option(option) == shown


def test_addresses_in_the_configuration_are_shown_without_their_secrets() -> None:
    """Also in the message about a value that is not valid; the job itself gets them as they are."""
    address = "http://me:hunter2@host:1/x?api_key=hunter2"
    configuration = Configuration({"weir.lineage.url": address})
    assert "hunter2" not in str(configuration.in_force())
    # An archive has the values as shown, and they are parsed when it is read.
    Configuration(configuration.in_force())
    with pytest.raises(ConfigurationError) as refused:
        Configuration({"rest.port": "http://me:hunter2@host"})
    assert "hunter2" not in str(refused.value)


def test_the_lines_of_the_log_are_kept_without_secrets() -> None:
    """The REST server and the web page show them."""
    log = LogBuffer()
    log.add(0, "INFO", "mine", "cannot reach http://me:hunter2@host/x", task="")
    assert [line.text for line in log.lines] == ["cannot reach http://******@host/x"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--password", "hunter2"),
        ("--password=hunter2 hunter2",),
        ("--db-password", "-hunter2"),
        ("API_KEY=hunter2 hunter2",),
        ("--dsn", "postgresql://me:hunter2@host/db"),
        ("postgresql://me:hunter2@host/db",),
        ("--conf", "spark.x.secret=hunter2"),
    ],
)
def test_no_secret_is_left_in_arguments(arguments: tuple[str, ...]) -> None:
    """Also where the value is an argument of its own, or has blanks."""
    shown = masked_arguments(arguments)
    assert "hunter2" not in shown
    assert MASKED in shown


def test_other_arguments_stay_as_a_shell_takes_them() -> None:
    """Words with blanks are quoted, and so is an empty one."""
    arguments = ["--out", "a b", "", "--limit=5", "-v", "--token-free", "x", "é", "--"]
    shown = masked_arguments(arguments[:5])
    assert shown == "--out 'a b' '' --limit=5 -v"
    assert masked_arguments(arguments[7:]) == "'é' --"
