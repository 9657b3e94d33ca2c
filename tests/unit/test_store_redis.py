"""A store in Redis before it is connected: an address without secrets, picklable, with nothing
installed; and its layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txtopo.errors import UsageError
from txtopo.stores import Fence, RedisStore
from txtopo.stores.redis import layout
from txtopo.stores.stamps import CLOSED_ATTEMPT, UNKNOWN_ATTEMPT, Row, Stamp

URL = "redis://ann@cache.example:6380/3"
SECRET = "sw0rdfish"


def test_its_address_names_the_server_and_the_store_but_not_the_user() -> None:
    store = RedisStore(URL, "counts", opaque=True)
    assert (store.name, store.address, store.location) == (
        "counts",
        "redis://cache.example:6380/3#counts",
        URL,
    )
    assert repr(store) == "<RedisStore redis://cache.example:6380/3#counts opaque>"
    assert store.local_only_reason is None


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", "redis://h:6379/0#counts"),
        ("redis://h/", "redis://h:6379/0#counts"),
        ("redis://ann@[::1]:7000/2", "redis://[::1]:7000/2#counts"),
        ("rediss://h/0?ssl_ca_certs=/etc/ca.pem", "rediss://h:6379/0#counts"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock#counts"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock?db=2#counts"),
    ],
)
def test_equal_servers_have_equal_addresses(url: str, address: str) -> None:
    assert RedisStore(url, "counts").address == address


@pytest.mark.parametrize(
    "url",
    [
        f"redis://ann:{SECRET}@h/0",
        f"redis://:{SECRET}@h/0",
        "redis://ann:@h/0",
        f"redis://ann:{SECRET}/x@h/0",
        f"redis://ann:{SECRET}?x@h/0",
        f"redis://ann:{SECRET}#x@h/0",
        f"redis://h/0?password={SECRET}",
        f"redis://h/0?p%61ssword={SECRET}",
        f"rediss://h/0?ssl_password={SECRET}",
        f"redis:/ann:{SECRET}@h/0",
        f"http://ann:{SECRET}@h/0",
        f"redis://[ann:{SECRET}@h/0",
        f"unix://{SECRET}@/run/redis.sock?password={SECRET}",
        f"{SECRET}",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        RedisStore(url, "counts")
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__)
    assert "\n  Give" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:6379",
        "redis://",
        "redis:///0",
        "redis://h/a",
        "redis://h/0/1",
        "redis://h:x/0",
        "redis://h/0?db=1",
        "unix://",
    ],
)
def test_an_address_that_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(
        UsageError, match=r"\n  Give (redis://user@host:port/0|unix:///path/of/socket)"
    ):
        RedisStore(url, "counts")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "{a}", "a#b", "a" * 101, "é", "a\n"])
def test_a_name_that_would_mix_with_others_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be called .*\n  Use up to 100 letters"):
        RedisStore(URL, name)


BARE = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("redis", "pyspark", "kazoo", "pydantic", "sqlalchemy", "psycopg"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from txtopo.errors import SetupError
from txtopo.stores import RedisStore
store = RedisStore("redis://ann@h/0", "counts")
try:
    store.get("dog")
except SetupError as error:
    print(error)
"""


def test_a_store_is_made_without_its_package_and_names_the_package_when_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "needs redis-py, which cannot be imported: No module named 'redis'" in done.stdout
    assert "pip install 'txtopo[redis]'" in done.stdout


# -- what is kept --------------------------------------------------------------------------------

STAMP = Stamp("wörds", "first", "count", 3, 2**53 + 1, 7)


@pytest.mark.parametrize(
    "row",
    [
        Row("k", STAMP, prev=None, prev_txid=0, steps=["1"]),
        Row("k", STAMP, prev='"a\\nb"', prev_txid=6, steps=["1", None, '{"é":[]}']),
        Row(
            "k", Stamp("w", "g", "c", 0, 1, UNKNOWN_ATTEMPT), prev="null", prev_txid=1, steps=[None]
        ),
    ],
)
def test_a_row_comes_back_unchanged_and_unshared(row: Row) -> None:
    text = layout.row_text(row)
    first, second = layout.row_of("k", text), layout.row_of("k", text)
    assert first == second == row
    first.steps.append("2")
    assert second == row


def test_a_fence_comes_back_with_its_tenure_also_one_that_was_adopted() -> None:
    fence = Fence("w", 'a"b', "first", 2**60, CLOSED_ATTEMPT)
    field = layout.fence_field("w", 'a"b')
    assert layout.fence_of(field, layout.fence_text(fence, 12)) == (fence, 12)


def test_all_keys_of_a_store_are_in_one_slot_which_its_name_says() -> None:
    names = layout.Names("counts")
    keys = [
        names.meta,
        names.fences,
        names.rows,
        names.order,
        names.deleted,
        names.served,
        names.written("{x}", "{y}"),
    ]
    assert len(set(keys)) == 7
    # Redis hashes the text between the first { and the first } after it.
    assert {key.partition("{")[2].partition("}")[0] for key in keys} == {"counts"}
