"""No secret is shown: for secrets of any text, kept or written in any place."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txtopo import Config
from txtopo.topology import redaction
from txtopo.topology.conf import TopologyConf

MARK = "QZX"
"""In every secret, and in nothing else."""
awkward = st.text("ab1/@:?#%=+,.!$()*[]{}|~^`\\", max_size=8)
secrets = st.tuples(awkward, awkward).map(MARK.join)
"""Out of all parts of URLs."""
plain = st.text(string.ascii_lowercase + string.digits + "._-~", max_size=6).map(
    lambda text: f"{text}{MARK}{text}"
)
KEYS = (
    "password",
    "db_password",
    "PASSWD",
    "pwd",
    "db.pwd",
    "passphrase",
    "api_key",
    "apiKey",
    "api-key",
    "APIKEY",
    "credential",
    "credentials",
    "aws_secret_access_key",
    "access.key",
    "private_key",
    "token",
    "authToken",
    "client_secret",
    "sasl.password",
    "ssl.key.pem",
    "pass",
)
NO_SECRETS = (
    "password_file",
    "max_spout_pending",
    "bypass",
    "passage",
    "compass",
    "key",
    "keys",
    "monkey",
    "spark.x.credentials.provider",
)


def urls(secret: str) -> list[str]:
    """Addresses with ``secret`` for a password."""
    return [
        f"pg://user:{secret}@host:5432/db",
        f"pg://:{secret}@host",
        f"see pg://u:{secret}@h/db?x=1 there",
    ]


@given(secrets)
def test_a_password_of_any_characters_in_an_address_is_hidden(secret: str) -> None:
    for url in urls(secret):
        for value in (url, [url], {"db": (url,)}, {url: 1}, url.encode(), {url}):
            shown = repr(redaction.redacted(value))
            assert MARK not in shown
            assert redaction.HIDDEN in shown


@given(plain, st.sampled_from(KEYS))
def test_a_secret_that_is_named_in_an_address_is_hidden(secret: str, key: str) -> None:
    texts = [
        f"pg://host/db?{key}={secret}",
        f"pg://host/db?user=me&{key}={secret}&sslmode=require",
        f"sc://host:15002/;use_ssl=true;{key}={secret}",
        f"host=h {key}={secret} dbname=d",
        f"{key}='{secret} {secret}'",
        f'{{"{key}": "{secret} {secret}", "user": "me"}}',
        f"--{key}={secret}",
    ]
    for text in texts:
        assert MARK not in redaction.redacted(text), text


@given(st.one_of(secrets, st.integers(), st.lists(secrets)), st.sampled_from(KEYS))
def test_a_value_under_the_name_of_a_secret_is_hidden(secret: Any, key: str) -> None:
    value = {
        "user": {"nested": [{key: secret}], key.upper(): secret},
        key.title(): (secret, secret),
    }
    for shown in (
        redaction.redacted(value),
        repr(TopologyConf({"user": value})),
        redaction.redacted([f"--{key}", secret, "after"]),
    ):
        assert MARK not in repr(shown)
    assert redaction.redacted([f"--{key}", secret, "after"]) == [
        f"--{key}",
        redaction.HIDDEN,
        "after",
    ]


@given(secrets)
def test_settings_of_the_user_s_own_are_shown_without_secrets(secret: str) -> None:
    conf = Config({"user": {"api_key": secret, "db": f"mysql://u:{secret}@h/db"}})
    assert MARK not in repr(conf)


@pytest.mark.parametrize("key", NO_SECRETS)
def test_other_names_are_no_secrets(key: str) -> None:
    assert redaction.redacted({key: "shown"}) == {key: "shown"}


@pytest.mark.parametrize(
    "text",
    [
        "pg://host:5432/db",
        "pg://me@host:5432/db?sslmode=require",
        "zk1:2181,zk2:2181/chroot",
        "a=1 b=2",
        "mail me@host",
        "",
        "https://idp/realms/@me/token",
        "https://idp/realms/a:b@me/token?to=c:d@e#f:g@h",
        "https://idp:8443/realms/@me/token",
        "HTTP://idp:80?to=me:you@here",
        "https://idp?to=https://me@there",
        "https://me@idp:8443/@me",
        "https://[::1]:8443/@me, https://[fe80::1]/@me",
        "pg://host/a:b@c",
        "-v /data:/data:ro img@sha256:9f",
        "PATH=/srv:/opt:/lib lost, by me@alpha",
        "C:/rows.csv: line @ 7",
    ],
)
def test_text_without_a_secret_is_shown_unchanged(text: str) -> None:
    assert redaction.redacted(text) == text
    assert redaction.redacted({"text": [text, (1, None, True)]}) == {
        "text": [text, [1, None, True]]
    }


@pytest.mark.parametrize(
    "text",
    [
        f"https://me:a{MARK}@idp/realms/@me/token",
        f"https://me:a@{MARK}@idp",
        f"https://me:/{MARK}@idp",
        f"https://me:a/{MARK}@idp/@me",
        f"https://me:123456/{MARK}@idp",
        f"https://me:8443{MARK}@idp",
        f"https://me:8443@{MARK}@idp",
        f"https://me:a%40{MARK}%2F@idp",
        f"https://me%3a{MARK}@idp",
        f"https://:{MARK}@idp",
        f"https://idp:8443/@me https://me:{MARK}@idp",
        f"https://idp:8443/@me?client_secret={MARK}",
        f"https://idp:8443/@me?client%5Fsecret={MARK}",
        f"https://idp/@me?%70assword={MARK}",
        f"https://[::1]:8443/@me?token={MARK}",
        f"https://me:{MARK}@[::1]:8443/@me",
        f"pg://me:1/{MARK}@host",
    ],
)
def test_a_secret_beside_an_at_sign_that_is_none_is_hidden(text: str) -> None:
    assert MARK not in redaction.redacted(text)
    assert MARK not in redaction.redacted({"user": [text]})["user"][0]


def test_a_long_word_is_looked_at_once() -> None:
    """A search from each of its letters would outlast the test's patience."""
    word = "x" * 1_000_000
    assert redaction.redacted(word) == word
