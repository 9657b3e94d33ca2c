"""Places for ZooKeeper's password, places that are refused, and the secrecy of the password."""

from __future__ import annotations

import importlib.util
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol import serialization

from txtopo import Config, config, errors
from txtopo.command import cli
from txtopo.config import display
from txtopo.state import client, credentials

SECRET = "sesame-5up3r"
ANN = {"zookeeper_auth": "digest", "zookeeper_user": "ann"}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_without_zookeeper_auth_there_are_no_credentials() -> None:
    assert credentials.of(Config(), {"TXTOPO_ZOOKEEPER_PASSWORD": SECRET}) is None


@pytest.mark.parametrize("scheme", ["digest", "sasl"])
def test_the_password_comes_from_the_environment(scheme: str) -> None:
    secret = credentials.of(
        Config({**ANN, "zookeeper_auth": scheme}), {"TXTOPO_ZOOKEEPER_PASSWORD": f"/{SECRET}@:%2F"}
    )
    assert secret is not None
    assert (secret.scheme, secret.user, secret.reveal()) == (scheme, "ann", f"/{SECRET}@:%2F")


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_the_password_comes_from_a_file_without_the_end_of_its_line(
    ending: bytes, tmp_path: Path
) -> None:
    file = written(tmp_path / "password", f" {SECRET} ü".encode() + ending)
    secret = credentials.of(Config(ANN, zookeeper_password_file=file), {})
    assert secret is not None
    assert secret.reveal() == f" {SECRET} ü"


def test_the_name_of_the_file_begins_at_the_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "txtopo.toml").write_text('zookeeper_password_file = "secrets/zookeeper"\n')
    resolved = config.resolve(environment={}, directory=tmp_path)
    assert resolved.config.zookeeper_password_file == tmp_path / "secrets" / "zookeeper"
    assert json.dumps(str(tmp_path / "secrets" / "zookeeper")) in display.as_text(
        resolved, with_origins=True
    )


@pytest.mark.parametrize(
    ("settings", "environment", "message"),
    [
        ({"zookeeper_user": "ann"}, {}, "zookeeper_user is set, but zookeeper_auth is 'none'"),
        (
            {"zookeeper_password_file": "f"},
            {},
            "zookeeper_password_file is set, but zookeeper_auth is 'none'",
        ),
        (
            {"zookeeper_auth": "digest"},
            {"TXTOPO_ZOOKEEPER_PASSWORD": SECRET},
            "there is no zookeeper_user",
        ),
        ({**ANN, "zookeeper_user": "a:b"}, {"TXTOPO_ZOOKEEPER_PASSWORD": SECRET}, "has a colon"),
        (
            ANN,
            {},
            "no password for 'ann'[\\s\\S]*zookeeper_password_file, or set TXTOPO_ZOOKEEPER_PASSWORD",
        ),
        (
            {**ANN, "zookeeper_password_file": "f"},
            {"TXTOPO_ZOOKEEPER_PASSWORD": SECRET},
            "two passwords",
        ),
        (
            {**ANN, "zookeeper_password_file": "/nowhere/f"},
            {},
            "/nowhere/f, cannot be read: No such file",
        ),
    ],
)
def test_missing_or_doubled_credentials_are_a_usage_error_with_the_cure(
    settings: Any, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message) as refused:
        credentials.of(Config(settings), environment)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"", b"\n", f"{SECRET}\nmore".encode(), b"x" * 70_000, SECRET.encode() + b"\xff"]
)
def test_a_file_that_holds_no_password_is_refused_without_being_shown(
    content: bytes, tmp_path: Path
) -> None:
    file = written(tmp_path / "password", content)
    with pytest.raises(errors.ConfigError, match="must hold only the password") as refused:
        credentials.of(Config(ANN, zookeeper_password_file=file), {})
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_sasl_without_its_library_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.SetupError, match=r"pip install 'txtopo\[sasl\]'"):
        credentials.of(Config(ANN, zookeeper_auth="sasl"), {"TXTOPO_ZOOKEEPER_PASSWORD": SECRET})


KEYS = [
    "zookeeper_password",
    "zookeeper.password",
    "zookeeper_secret",
    "storm.zookeeper.auth.payload",
    "storm.zookeeper.topology.auth.payload",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("source", ["code", "spark", "command line", "file"])
def test_a_password_as_a_setting_is_refused_with_the_cure_wherever_it_is_given(
    source: str, key: str, tmp_path: Path
) -> None:
    layers: dict[str, Any] = {}
    match source:
        case "code":
            layers["code"] = {key: SECRET}
        case "spark":
            layers["spark"] = {f"spark.txtopo.{key}": SECRET}
        case "command line":
            layers["command_line"] = {key: SECRET}
        case _:
            (tmp_path / "txtopo.toml").write_text(f'"{key}" = "{SECRET}"\n')
    cure = (
        r"a password is no setting[\s\S]*zookeeper_password_file, or set TXTOPO_ZOOKEEPER_PASSWORD"
    )
    with pytest.raises(errors.ConfigError, match=cure) as refused:
        config.resolve(**layers, environment={}, directory=tmp_path)
    assert SECRET not in str(refused.value)


def test_a_password_after_set_ends_the_command_with_the_cure_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["config", "show", "--set", f"zookeeper_password={SECRET}"]) == 2
    said = "".join(capsys.readouterr())
    assert "zookeeper_password_file" in said
    assert SECRET not in said


@pytest.mark.in_gate("*-", "*-[@/]")
@pytest.mark.parametrize("separator", ["", *"/@%:,?# "])
@pytest.mark.parametrize(
    "address",
    [
        "ann:{}@host:2181",
        "digest://ann:{}@host:2181/chroot",
        "zk1:2181,ann:{}@host:2181",
        "host:2181/{}@chroot",
        "ann:22@{}",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_shown(
    address: str,
    separator: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from txtopo.state.zookeeper import ZooKeeperStateStore

    monkeypatch.chdir(tmp_path)
    for password in (f"{SECRET}{separator}{SECRET}", f"{separator}{SECRET}"):
        servers = address.format(password)
        for use in (ZooKeeperStateStore, lambda servers: Config(zookeeper=servers)):
            with pytest.raises(
                errors.ConfigError, match="Give credentials with zookeeper_auth"
            ) as refused:
                use(servers)
            assert SECRET not in str(refused.value)
        assert cli.main(["config", "show", "--set", f"zookeeper={servers}"]) == 2
        said = "".join(capsys.readouterr())
        assert "Give credentials with zookeeper_auth" in said
        assert SECRET not in said


def test_the_password_in_the_environment_is_no_setting_and_config_show_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXTOPO_ZOOKEEPER_PASSWORD", SECRET)
    monkeypatch.setenv("TXTOPO_ZOOKEEPER_AUTH", "digest")
    monkeypatch.setenv("TXTOPO_ZOOKEEPER_USER", "ann")
    assert cli.main(["config", "show", "--origin"]) == 0
    shown = "".join(capsys.readouterr())
    assert '"ann"' in shown
    assert SECRET not in shown
    assert SECRET not in str(config.resolve().config.as_mapping())


def test_credentials_show_everything_but_the_password_and_are_not_pickled() -> None:
    secret = credentials.Credentials("digest", "ann", SECRET)
    assert (repr(secret), str(secret)) == ("Credentials('digest', 'ann', ***)", "digest user 'ann'")
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)


def test_kazoo_logs_requests_but_neither_passwords_nor_keys_of_sessions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(1, client._LOGGER.name)
    for request in (
        serialization.Auth(0, "digest", f"ann:{SECRET}"),
        serialization.SASL(SECRET.encode()),
    ):
        client._LOGGER.log(logging.DEBUG, "Sending request(xid=%s): %s", 1, request)
    client._LOGGER.log(5, "Using session_id: %r session_passwd: %s", 1, SECRET)
    client._LOGGER.log(
        logging.DEBUG, "Sending request(xid=%s): %s", 1, serialization.Exists("/words", None)
    )
    assert SECRET not in caplog.text
    assert "/words" in caplog.text
