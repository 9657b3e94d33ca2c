"""Makes zips with code that executors lack: a zip with this package, and a zip with the user's
modules.

spark-submit, ``SparkContext.addPyFile`` and a container image take the same zip. Only pure Python
can be imported from a zip. Packages with native code travel in an archive (see the page about
clusters).

Runs on: driver.

Invariants: a zip's name tells its content. So an existing zip is never written again, and a line
that names a zip means the same tomorrow. Zips with equal content are equal, byte by byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import marshal
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from txtopo import errors, version
from txtopo.topology import pickling

_EPOCH = (1980, 1, 1, 0, 0, 0)
_NOT_SHIPPED = ("__pycache__",)
_COMPILED = (".pyc", ".pyo")
_NATIVE = (".so", ".pyd", ".dylib")


@dataclass(frozen=True, slots=True)
class Package:
    """A zip with the modules and packages ``names``. Its files ``native`` cannot be imported from a
    zip."""

    path: Path
    names: tuple[str, ...]
    native: tuple[str, ...] = ()


def of_txtopo(directory: Path) -> Package:
    """A zip with this package, made in ``directory``."""
    package = Path(errors.__file__).parent
    return _make_zip(
        directory, f"txtopo-{version.VERSION}", ("txtopo",), _files_of_package("txtopo", [package])
    )


def of_code(directory: Path, modules: Mapping[str, ModuleType] | None = None) -> Package | None:
    """A zip with the user's modules among the loaded ``modules`` (default: all), or ``None`` if
    there are none. Python's modules, installed modules and ours stay out.

    A package travels with all its files, also files not loaded yet. The topology's own file stays
    out: its classes travel by value.
    """
    loaded = dict(sys.modules if modules is None else modules)
    files: dict[str, Path] = {}
    names = sorted(
        {name.partition(".")[0] for name, module in loaded.items() if _is_users(name, module)}
    )
    for name in names:
        top = loaded.get(name)
        if top is None:
            continue
        paths = [Path(path) for path in getattr(top, "__path__", [])]
        files |= (
            _files_of_package(name, paths) if paths else {f"{name}.py": Path(str(top.__file__))}
        )
    return _make_zip(directory, "code", tuple(names), files) if files else None


def _is_users(name: str, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if (
        name in ("__main__", "__mp_main__", pickling.FILE_MODULE)
        or name.partition(".")[0] == "txtopo"
        or file is None
        or not file.endswith(".py")
    ):
        return False
    places = {
        os.path.realpath(sysconfig.get_path(kind))
        for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    path = os.path.realpath(file)
    return (
        not any(path.startswith(place + os.sep) for place in places)
        and "site-packages" not in path
        and "dist-packages" not in path
    )


def _files_of_package(name: str, directories: Iterable[Path]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for directory in directories:
        for file in directory.rglob("*"):
            inside = file.relative_to(directory)
            is_passed_by = any(
                part in _NOT_SHIPPED or part.startswith(".") for part in inside.parts
            )
            if file.is_file() and not is_passed_by and not file.name.endswith(_COMPILED):
                files.setdefault(f"{name}/{inside.as_posix()}", file)
    return files


def _make_zip(
    directory: Path, stem: str, names: tuple[str, ...], files: Mapping[str, Path]
) -> Package:
    contents = {name: files[name].read_bytes() for name in sorted(files)}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    # Compiled code fits one Python version.
    digest.update(importlib.util.MAGIC_NUMBER)
    path = directory.absolute() / f"{stem}-{digest.hexdigest()[:12]}.zip"
    if not path.is_file():
        _write(path, _with_compiled(contents))
    return Package(path, names, tuple(name for name in contents if name.endswith(_NATIVE)))


def _with_compiled(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """``contents`` and, beside each source, its bytecode. Python writes no bytecode into a zip, so
    every new worker would compile all imported modules.

    Another Python version passes by the bytecode, and takes the source.
    """
    both = dict(contents)
    for name, source in contents.items():
        if name.endswith(".py"):
            try:
                code = compile(source, name, "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                continue
            # PEP 552, by hash and unchecked: the zip's name changes with its content. marshal
            # version 2 makes equal bytes from equal code.
            header = (
                importlib.util.MAGIC_NUMBER
                + (1).to_bytes(4, "little")
                + importlib.util.source_hash(source)
            )
            both[f"{name}c"] = header + marshal.dumps(code, 2)
    return both


def _write(path: Path, contents: Mapping[str, bytes]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            file.writestr(entry, contents[name])
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(buffer.getvalue())
        # The whole zip appears at once, because another process may be looking for it.
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise errors.UsageError(
            f"{path} cannot be written: {error.strerror or error}\n  Give a writable directory: --build-dir DIR"
        ) from None
