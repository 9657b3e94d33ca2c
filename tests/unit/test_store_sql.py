"""A store in a database server before it is connected: an address without secrets, picklable, with
nothing installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txtopo.errors import UsageError
from txtopo.stores import SqlStore

URL = "postgresql+psycopg://ann@db.example:5433/bank"


def test_its_address_names_the_database_and_the_table_but_not_the_user() -> None:
    store = SqlStore(URL, "counts", opaque=True)
    assert (store.name, store.address, store.location) == (
        "counts",
        "postgresql+psycopg://db.example:5433/bank#counts",
        URL,
    )
    assert repr(store) == "<SqlStore postgresql+psycopg://db.example:5433/bank#counts opaque>"
    assert store.local_only_reason is None


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql+psycopg:///bank", "postgresql+psycopg:///bank#counts"),
        ("postgresql+psycopg://?service=bank", "postgresql+psycopg://?service=bank#counts"),
        ("postgresql+psycopg://ann@[::1]:5432/bank", "postgresql+psycopg://[::1]:5432/bank#counts"),
        (
            "postgresql+psycopg://ann@h/bank?sslmode=require",
            "postgresql+psycopg://h/bank?sslmode=require#counts",
        ),
        ("mysql+pymysql://ann@h:3307/bank", "mysql+pymysql://h:3307/bank#counts"),
        (
            "mysql+pymysql:///bank?unix_socket=/run/my",
            "mysql+pymysql:///bank?unix_socket=/run/my#counts",
        ),
    ],
)
def test_a_database_may_be_named_in_every_way_of_its_driver(url: str, address: str) -> None:
    assert SqlStore(url, "counts").address == address


SECRET = "sw0rdfish"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://ann:{SECRET}@h/bank",
        "postgresql+psycopg://ann:@h/bank",
        f"postgresql+psycopg://ann:{SECRET}/x@h/bank",
        f"postgresql+psycopg://ann:{SECRET}?x@h/bank",
        f"postgresql+psycopg://ann:{SECRET}#x@h/bank",
        f"postgresql+psycopg://ann:12/{SECRET}@h/bank",
        f"postgresql+psycopg://ann:12#{SECRET}@h/bank",
        f"postgresql+psycopg://ann:x@{SECRET}@h/bank",
        f"postgresql+psycopg://h/bank?password={SECRET}",
        f"postgresql+psycopg://h/bank?p%61ssword={SECRET}",
        f"postgresql+psycopg://h/bank?user=ann&sslpassword={SECRET}",
        f"mysql+pymysql://ann:{SECRET}@h/bank",
        f"mysql+pymysql://h/bank?passwd={SECRET}",
        f"mysql+pymysql://h/bank?PASSWORD={SECRET}",
        f"mysql://ann:{SECRET}@h/bank",
        f"postgresql+psycopg:/ann:{SECRET}@h/bank",
        f"postgresql://ann:{SECRET}@h/bank",
        f"postgresql+psycopg://[ann:{SECRET}@h/bank",
        f"{SECRET}",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        SqlStore(url, "counts")
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__)
    assert "\n  Give" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "counts.db",
        "postgresql://h/db",
        "mysql://h/db",
        "postgresql+psycopg://h",
        "postgresql+psycopg://h/a/b",
        "postgresql+psycopg://h:x/d",
    ],
)
def test_an_address_that_is_no_database_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"postgresql\+psycopg://user@host:port/database"):
        SqlStore(url, "counts")


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql://h",
        "mysql+pymysql://h/a/b",
        "mysql+pymysql://h:x/d",
        "mysql+pymysql://h?service=bank",
    ],
)
def test_an_address_that_is_no_mysql_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(UsageError, match=r"Give mysql\+pymysql://user@host:port/database"):
        SqlStore(url, "counts")


@pytest.mark.parametrize(
    "table",
    [
        "",
        "1st",
        "a b",
        'a"; DROP TABLE x',
        "pg_counts",
        "txtopo_fence",
        "TXTOPO_x",
        "a" * 51,
        "é",
        "a\n",
    ],
)
def test_a_name_that_is_no_table_name_is_refused(table: str) -> None:
    with pytest.raises(UsageError, match="cannot name a table"):
        SqlStore(URL, table)


BARE = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in (sys.argv[1], "pyspark", "kazoo", "pydantic"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from txtopo.errors import SetupError
from txtopo.stores import SqlStore
store = SqlStore(sys.argv[2], "counts")
assert not [name for name in sys.modules if name.startswith(("sqlalchemy", "psycopg", "pymysql"))]
try:
    store.get("dog")
except SetupError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("scheme", "driver", "extra", "missing"),
    [
        ("postgresql+psycopg", "psycopg", "postgres", "sqlalchemy"),
        ("postgresql+psycopg", "psycopg", "postgres", "psycopg"),
        ("mysql+pymysql", "PyMySQL", "mysql", "sqlalchemy"),
        ("mysql+pymysql", "PyMySQL", "mysql", "pymysql"),
    ],
)
def test_a_store_is_made_without_its_packages_and_names_them_when_used(
    scheme: str, driver: str, extra: str, missing: str
) -> None:
    command = [sys.executable, "-c", BARE, missing, f"{scheme}://ann@h/bank"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert (
        f"needs SQLAlchemy and {driver}, which cannot be imported: No module named '{missing}'"
        in done.stdout
    )
    assert f"pip install 'txtopo[{extra}]'" in done.stdout
