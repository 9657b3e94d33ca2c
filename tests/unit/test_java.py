"""Finding Java: the right Java is chosen, and every wrong Java is refused with the command to
type.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from txtopo import errors
from txtopo.state import java

MakeJava = Callable[..., Path]

MODERN = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Makes ``<tmp>/<home>/bin/java``, a script that says ``words`` on stderr; gives ``home``."""

    def make(words: str, exit_code: int = 0, home: str = "java-home") -> Path:
        executable = tmp_path / home / "bin" / "java"
        executable.parent.mkdir(parents=True)
        executable.write_text(
            f"#!/bin/sh\nwhile read -r line; do echo \"$line\" >&2; done <<'END'\n{words}\nEND\nexit {exit_code}\n"
        )
        executable.chmod(0o755)
        return executable.parent.parent

    return make


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "version"),
    [
        (MODERN, 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('openjdk version "25.0.1" 2025-10-21', 25),
        (
            'OpenJDK 64-Bit Server VM warning: something is odd\nopenjdk version "17.0.2" 2022-01-18',
            17,
        ),
    ],
)
def test_a_new_enough_java_on_the_path_is_found(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, words: str, version: int
) -> None:
    home = make_java(words)
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert java.require_java() == java.Java(str(home / "bin" / "java"), version)


def test_java_home_goes_before_the_path(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(make_java(MODERN, home="on-path") / "bin"))
    home = make_java('openjdk version "21.0.1"', home="at-home")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.require_java() == java.Java(str(home / "bin" / "java"), 21)


def test_an_empty_java_home_is_none(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(make_java(MODERN) / "bin"))
    monkeypatch.setenv("JAVA_HOME", "")
    assert java.require_java().version == 17


def test_a_wrong_java_home_is_an_error_although_the_path_has_java(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(make_java(MODERN) / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(errors.SetupError, match="unset JAVA_HOME") as caught:
        java.require_java()
    assert str(tmp_path / "gone") in str(caught.value).splitlines()[0]


def test_no_java_at_all_says_how_to_install_it() -> None:
    with pytest.raises(errors.SetupError, match="apt-get install default-jre-headless") as caught:
        java.require_java()
    assert "not found" in str(caught.value).splitlines()[0]
    assert "JAVA_HOME" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ('java version "1.8.0_392"', 8),
        ('openjdk version "11.0.22" 2024-01-16', 11),
        ('openjdk version "16"', 16),
    ],
)
def test_a_java_that_is_too_old_is_refused_with_its_version(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, words: str, version: int
) -> None:
    home = make_java(words)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(errors.SetupError, match="apt-get install default-jre-headless") as caught:
        java.require_java()
    assert (
        str(caught.value).splitlines()[0]
        == f"{home / 'bin' / 'java'} is Java {version}, but Java 17 or newer is needed"
    )


def test_a_java_that_fails_is_shown_with_its_output(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("Error: could not find libjava.so", exit_code=2)))
    with pytest.raises(errors.SetupError, match=r"could not find libjava\.so") as caught:
        java.require_java()
    assert "exit code 2" in str(caught.value).splitlines()[0]


def test_a_java_whose_answer_is_not_a_version_is_refused(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("hello")))
    with pytest.raises(errors.SetupError, match="hello"):
        java.require_java()


def test_a_java_that_is_no_program_is_refused(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(MODERN)
    (home / "bin" / "java").write_bytes(b"\x00\x01")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(errors.SetupError, match="does not run"):
        java.require_java()


def test_a_java_that_never_answers_is_refused_in_time(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(MODERN)
    # The test waits for a line that never comes: the other end of the pipe stays closed.
    (home / "bin" / "java").write_text('#!/bin/sh\nread -r line < "$0.pipe"\n')
    os.mkfifo(home / "bin" / "java.pipe")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(java, "ANSWER_TIMEOUT_S", 0.05)
    with pytest.raises(errors.SetupError, match="timed out"):
        java.require_java()


def test_the_version_is_asked_once_per_executable(
    tmp_path: Path, make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(MODERN)
    (home / "bin" / "java").write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho 'openjdk version \"17\"'\n"
    )
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert [java.require_java().version for _ in range(3)] == [17, 17, 17]
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_options_for_the_users_jvms_are_not_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "-Xdebug")
    monkeypatch.setenv("KEPT", "1")
    assert "-Xdebug" not in java.environment().values()
    assert java.environment()["KEPT"] == "1"
