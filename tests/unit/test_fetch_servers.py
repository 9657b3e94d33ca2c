"""Fetching the servers of the tests: whole or not at all, and with words that help where
they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import fetch, mariadb

SERVER = fetch.Server("maria", "mariadb-server-core", "no-such-server")

FETCHING = """#!/bin/sh
[ "$*" = "${*%update}" ] || exit 0
for word in "$@"; do case "$word" in Dir::Cache::archives=*) touch "${word#*=}/some.deb";; esac; done
"""
UNPACKING = """#!/bin/sh
mkdir -p "$3/usr/sbin" "$3/usr/lib/machine"
touch "$3/usr/sbin/no-such-server" "$3/usr/lib/machine/libsome.so.1"
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetch, "HOME", tmp_path / "servers")
    monkeypatch.setattr(fetch, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setitem(fetch.SERVERS, "maria", SERVER)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(place: Path, name: str, text: str) -> None:
    (place / "bin" / name).write_text(text)
    (place / "bin" / name).chmod(0o755)


def test_a_server_that_was_fetched_is_found_with_its_libraries(place: Path) -> None:
    program(place, "apt-get", FETCHING)
    program(place, "dpkg-deb", UNPACKING)
    fetch.fetch(SERVER)
    server = fetch.found("maria")
    root = place / "servers" / "maria"
    assert (server.program, server.root) == (root / "usr/sbin/no-such-server", root)
    assert server.environment == {"LD_LIBRARY_PATH": str(root / "usr/lib/machine")}
    program(place, "apt-get", "#!/bin/sh\nexit 1\n")
    fetch.fetch(SERVER)  # the server is installed, and no question is asked again


def test_a_server_of_the_machine_is_used_as_it_is(place: Path) -> None:
    program(place, "no-such-server", "#!/bin/sh\n")
    fetch.fetch(SERVER)
    server = fetch.found("maria")
    assert (server.program, server.environment) == (place / "bin" / "no-such-server", {})
    assert not (place / "servers").exists()


def test_a_program_that_does_as_well_is_used_where_the_machine_has_that_one_only(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fetch.Server(
        "maria", "mariadb-server-core", "no-such-server", others=("neither", "such-server")
    )
    monkeypatch.setitem(fetch.SERVERS, "maria", server)
    program(place, "such-server", "#!/bin/sh\n")
    assert fetch.found("maria").program == place / "bin" / "such-server"
    program(place, "no-such-server", "#!/bin/sh\n")
    assert fetch.found("maria").program == place / "bin" / "no-such-server"


def test_lists_that_are_out_of_date_are_renewed_in_a_place_of_their_own(place: Path) -> None:
    program(
        place,
        "apt-get",
        FETCHING.replace("[ ", 'case "$*" in *Dir::State::Lists=*) ;; *) exit 100;; esac\n[ ', 1),
    )
    program(place, "dpkg-deb", UNPACKING)
    fetch.fetch(SERVER)
    assert fetch.found("maria").program.exists()


@pytest.mark.parametrize(("failures", "is_fetched"), [(2, True), (3, False)])
def test_a_mirror_that_does_not_answer_is_asked_three_times(
    place: Path, failures: int, is_fetched: bool
) -> None:
    # The first question is that with the lists of the machine; then each try begins with an update.
    failing = f'case "$*" in *update) ;; *) echo >>{place}/asked; [ $(wc -l <{place}/asked) -gt {failures + 1} ] || exit 100;; esac\n'
    program(place, "apt-get", FETCHING.replace("[ ", f"{failing}[ ", 1))
    program(place, "dpkg-deb", UNPACKING)
    if is_fetched:
        fetch.fetch(SERVER)
        assert fetch.found("maria").program.exists()
    else:
        with pytest.raises(
            RuntimeError, match=r"mariadb-server-core cannot be fetched: (?s:.*)type: make servers"
        ):
            fetch.fetch(SERVER)
    assert len((place / "asked").read_text().splitlines()) == 4


def test_a_mirror_that_never_answers_is_given_up_with_the_same_words(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FETCH_TIMEOUT_S", 0.01)
    program(place, "apt-get", "#!/bin/sh\nexec tail -f /dev/null\n")
    program(place, "dpkg-deb", UNPACKING)
    with pytest.raises(
        RuntimeError,
        match=r"mariadb-server-core cannot be fetched: apt-get took longer than 0.01 s\n  .*type: make servers",
    ):
        fetch.fetch(SERVER)


@pytest.mark.parametrize(
    ("directory", "prefix"), [("mysql", "mysql"), ("mariadb", "mariadb"), ("mysql", "mariadb")]
)
def test_the_scripts_of_older_and_newer_versions_of_mariadb_are_found(
    place: Path, directory: str, prefix: str
) -> None:
    shared = place / "usr" / "share" / directory
    shared.mkdir(parents=True)
    server = fetch.Found(place / "mariadbd", place)
    with pytest.raises(
        fetch.ServerMissingError,
        match=r"lacks the scripts of MariaDB .*\n  Type: apt-get install mariadb-server-core",
    ):
        mariadb.scripts_of(server)
    for name in ("system_tables", "performance_tables", "system_tables_data"):
        (shared / f"{prefix}_{name}.sql").touch()
    assert [script.parent for script in mariadb.scripts_of(server)] == [shared] * 3


def test_a_failed_fetch_quotes_apt_and_leaves_no_files(place: Path) -> None:
    program(place, "apt-get", FETCHING)
    program(place, "dpkg-deb", f"{UNPACKING}echo 'the archive is broken' >&2; exit 2\n")
    with pytest.raises(
        RuntimeError,
        match=r"cannot be fetched: the archive is broken\n  .*; or type: apt-get install mariadb-server-core",
    ):
        fetch.fetch(SERVER)
    assert list((place / "servers").iterdir()) == []
    with pytest.raises(
        RuntimeError,
        match=r"there is no no-such-server to test with\n  Type: make servers; or, .*, install maria",
    ):
        fetch.found("maria")


def test_without_apt_the_message_names_the_packages_to_install(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place / "bin"))
    with pytest.raises(
        RuntimeError,
        match=r"there is no apt-get here\n  Install maria, so that no-such-server is on the PATH",
    ):
        fetch.fetch(SERVER)
