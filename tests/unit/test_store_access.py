"""Passwords and limits of a store in a server, whatever the server: checked when the store is made,
read when a connection is made."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txtopo.errors import SetupError, UsageError
from txtopo.stores import RedisStore, SqlStore

URLS: dict[Callable[..., Any], str] = {
    SqlStore: "postgresql+psycopg://ann@db.example:5433/bank",
    RedisStore: "redis://ann@cache.example:6380/3",
}
LIMITS = [
    (SqlStore, {"lock_timeout_s": 0}),
    (SqlStore, {"statement_timeout_s": -1.0}),
    (SqlStore, {"idle_timeout_s": float("nan")}),
    (RedisStore, {"connect_timeout_s": 0}),
    (RedisStore, {"answer_timeout_s": -1.0}),
    (RedisStore, {"answer_timeout_s": float("nan")}),
]
SECRET = "sw0rdfish"


@pytest.fixture(params=URLS, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a store of each kind, with the options of the call."""
    return lambda **options: request.param(URLS[request.param], "counts", **options)


@pytest.mark.parametrize(("kind", "settings"), LIMITS)
def test_a_limit_out_of_bounds_is_refused(
    kind: Callable[..., Any], settings: dict[str, Any]
) -> None:
    with pytest.raises(
        UsageError, match=rf"{kind.__name__}'s {next(iter(settings))} is .*\n  Give seconds"
    ):
        kind(URLS[kind], "counts", **settings)


def test_a_store_pickles_without_its_password(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_PASSWORD", SECRET)
    file = tmp_path / "password"
    file.write_text(SECRET)
    for store in (make(password_env="BANK_PASSWORD"), make(password_file=file)):
        pickled = pickle.dumps(store)
        assert SECRET.encode() not in pickled
        assert vars(pickle.loads(pickled)) == vars(store)
        assert SECRET not in repr(vars(store))


def test_two_sources_of_a_password_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="both password_env and password_file"):
        make(password_env="A", password_file="b")


def test_a_missing_password_is_named(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BANK_PASSWORD", raising=False)
    with pytest.raises(
        SetupError,
        match=r"from the environment variable BANK_PASSWORD, which is not set here\n  Set the variable",
    ):
        make(password_env="BANK_PASSWORD").get("dog")
    with pytest.raises(
        SetupError,
        match=rf"cannot read its password: .*{tmp_path}/none.*\n  The file must be on every machine",
    ):
        make(password_file=tmp_path / "none").get("dog")
