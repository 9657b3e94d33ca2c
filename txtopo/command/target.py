"""TARGET on the command line: finds and loads a topology in a module or a file.

``package.module``, ``file.py``, ``file.py:attribute`` or ``module:factory('argument', key=2)``. The
default attribute is ``topology``. The attribute may be a topology, a builder, or a function without
arguments that makes a topology or a builder. The module's ``conf`` is the configuration in code.

Invariants: a file is loaded as the module ``FILE_MODULE``, never under a name by which a worker
could find the file and run the file a second time. Classes and functions in the file travel by
value, as in ``__main__``.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from txtopo import config, errors
from txtopo.topology import pickling
from txtopo.topology.builder import TransactionalTopologyBuilder
from txtopo.topology.graph import TopologyGraph

T = TypeVar("T")

DEFAULT_ATTRIBUTE = "topology"
FILE_MODULE = pickling.FILE_MODULE
"""The module's name for a loaded file, modelled on multiprocessing's ``__mp_main__``."""

_loading: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The topology and the configuration that TARGET names, and their module."""

    topology: TopologyGraph
    conf: config.Config | None
    module: ModuleType


def loading() -> str | None:
    """The target that is being loaded at this moment, or ``None``."""
    return _loading


def resolve(text: str) -> Target:
    """Load the topology that ``text`` names.

    :raises UsageError: a file, module or attribute is missing, and the message has near misses, or
        the user's code failed, and the message has its traceback.
    """
    module, value, place, attribute = _load(text)
    conf = getattr(module, "conf", None)
    return Target(as_topology(value, f"{place}:{attribute}"), _as_config(conf, place), module)


def instance(text: str, kind: type[Any], name: str) -> Any:
    """Load the object of type ``kind`` that ``text`` names, or that the function there makes.

    :raises UsageError: as :func:`resolve`, or the object has another type.
    """
    _, value, place, attribute = _load(text)
    if inspect.isfunction(value):
        _require_no_arguments(value, text)
        value = _run_user_code(text, value)
    if not isinstance(value, kind):
        raise errors.UsageError(
            f"{place}:{attribute} is of type {type(value).__name__}, not {name}\n  Name {name}: module:attribute, or file.py:attribute."
        )
    return value


def _load(text: str) -> tuple[ModuleType, Any, str, str]:
    """The module and the value that ``text`` names, and its two parts."""
    place, attribute = _split(text)
    directory = Path(place).absolute().parent if is_file(place) else Path.cwd()
    for entry in (str(Path.cwd()), str(directory)):
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(0, entry)
    module = _load_file(place) if is_file(place) else _load_module(place)
    return module, _evaluate(module, attribute, place), place, attribute


def as_topology(value: Any, label: str) -> TopologyGraph:
    """The topology in ``value``, which is a topology, a builder, or a function without arguments
    that makes a topology or a builder."""
    if callable(value) and not isinstance(value, type):
        _require_no_arguments(value, label)
        value = _run_user_code(label, value)
    if isinstance(value, TransactionalTopologyBuilder):
        value = value.build_topology()
    if not isinstance(value, TopologyGraph):
        kind = (
            f"the class {value.__name__}"
            if isinstance(value, type)
            else f"of type {type(value).__name__}"
        )
        raise errors.UsageError(
            f"{label} is {kind}, not a topology\n"
            "  Name what builder.build_topology() returns, a builder, or a function without arguments that makes one."
        )
    return value


def _as_config(value: Any, place: str) -> config.Config | None:
    if value is None or isinstance(value, ModuleType | config.Config):
        return value if isinstance(value, config.Config) else None
    if not isinstance(value, Mapping):
        raise errors.UsageError(
            f"{place}:conf is of type {type(value).__name__}, and would be the code's configuration\n"
            "  Make conf a Config or a dict, or rename the variable."
        )
    return config.Config(value)


# -- finding -------------------------------------------------------------------------------------


def _split(text: str) -> tuple[str, str]:
    if is_file(text) and Path(text).is_file():
        return text, DEFAULT_ATTRIBUTE
    place, _, attribute = text.partition(":")
    if not place:
        raise errors.UsageError(
            f"{text!r} names no module and no file\n  Give package.module, file.py, or either with :attribute."
        )
    return place, attribute or DEFAULT_ATTRIBUTE


def is_file(place: str) -> bool:
    """Whether TARGET ``place`` names a file, there or not, and no module."""
    return place.endswith(".py") or "/" in place


def _load_file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise errors.UsageError(f"there is no file {place}{_near_files(path)}")
    spec = importlib.util.spec_from_file_location(FILE_MODULE, path.absolute())
    if spec is None or spec.loader is None:
        raise errors.UsageError(f"{place} is no Python file\n  Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[FILE_MODULE] = module
    pickling.travel_by_value(module)
    loader = spec.loader
    _run_user_code(place, lambda: loader.exec_module(module))
    return module


def _near_files(path: Path) -> str:
    if path.is_dir():
        return f": {path} is a directory\n  Name a file in it."
    with_suffix = path.with_name(path.name + ".py")
    if with_suffix.is_file():
        return f"\n  Did you mean {with_suffix}?"
    from_here = "" if path.is_absolute() else f"\n  The current directory is {Path.cwd()}."
    if not path.parent.is_dir():
        return f", nor a directory {path.parent}{from_here}"
    near = get_close_matches(path.name, [other.name for other in path.parent.glob("*.py")], n=3)
    return (
        "\n  Did you mean " + " or ".join(str(path.with_name(name)) for name in near) + "?"
        if near
        else from_here
    )


def _load_module(place: str) -> ModuleType:
    def load() -> ModuleType:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise errors.UsageError(
                f"there is no module {place!r}: Python finds no {error.name!r} from here{_near_modules(place)}"
            ) from error

    if not all(part.isidentifier() for part in place.split(".")):
        raise errors.UsageError(
            f"{place!r} is neither a module nor a file\n  A file's name ends in .py. A module's parts are separated by dots."
        )
    return _run_user_code(place, load)


def _near_modules(place: str) -> str:
    *packages, last = place.split(".")
    folder = Path(*packages)
    if packages and folder.with_suffix(".py").is_file():
        return f"\n  Did you mean {'.'.join(packages)}:{last}?"
    near = (
        get_close_matches(last, [file.stem for file in folder.glob("*.py")], n=3)
        if folder.is_dir()
        else []
    )
    if not near:
        return f"\n  The current directory is {Path.cwd()}."
    return "\n  Did you mean " + " or ".join(".".join([*packages, name]) for name in near) + "?"


# -- the attribute -------------------------------------------------------------------------------


def _evaluate(module: ModuleType, attribute: str, place: str) -> Any:
    """The value of ``attribute``: a dotted name, or a call with literal arguments."""
    try:
        expression = ast.parse(attribute, mode="eval").body
        name = expression.func if isinstance(expression, ast.Call) else expression
        value = _look_up(module, _dotted(name), place)
        if not isinstance(expression, ast.Call):
            return value
        arguments = [ast.literal_eval(argument) for argument in expression.args]
        keywords = {
            str(keyword.arg): ast.literal_eval(keyword.value)
            for keyword in expression.keywords
            if keyword.arg is not None
        }
    except (SyntaxError, ValueError):
        raise errors.UsageError(
            f"{attribute!r} is neither an attribute's name nor a call with literal arguments\n"
            "  Give `topology` or `make('words.txt', 3)`, for example."
        ) from None
    if not callable(value):
        raise errors.UsageError(
            f"{place}:{ast.unparse(name)} is of type {type(value).__name__} and cannot be called\n  Leave out the parentheses."
        )
    return _run_user_code(f"{place}:{attribute}", lambda: value(*arguments, **keywords))


def _dotted(name: ast.expr) -> list[str]:
    if isinstance(name, ast.Attribute):
        return [*_dotted(name.value), name.attr]
    if isinstance(name, ast.Name):
        return [name.id]
    raise ValueError


def _look_up(module: ModuleType, names: list[str], place: str) -> Any:
    value: Any = module
    for name in names:
        if not hasattr(value, name):
            raise errors.UsageError(_missing_text(module, ".".join(names), place))
        value = getattr(value, name)
    return value


def _missing_text(module: ModuleType, name: str, place: str) -> str:
    topologies = [
        other
        for other, value in vars(module).items()
        if isinstance(value, TopologyGraph | TransactionalTopologyBuilder)
    ]
    near = topologies or get_close_matches(
        name, [other for other in vars(module) if not other.startswith("_")], n=3
    )
    cure = (
        f"Did you mean {' or '.join(f'{place}:{other}' for other in near)}?"
        if near
        else "Bind it: topology = builder.build_topology()"
    )
    return f"{place} has no attribute {name!r}\n  {cure}"


def _require_no_arguments(value: Callable[..., Any], label: str) -> None:
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return
    try:
        signature.bind()
    except TypeError as error:
        raise errors.UsageError(
            f"{label}{signature} cannot be called without arguments: {error}\n  Give literal arguments: {label}('words.txt', 3)"
        ) from None


# -- code of the user ----------------------------------------------------------------------------


def _run_user_code(label: str, action: Callable[[], T]) -> T:
    """The result of ``action``, which runs the user's code. An exception is shown with the user's
    own frames."""
    global _loading
    before, _loading = _loading, label
    try:
        return action()
    except errors.TxtopoError:
        raise
    except (Exception, SystemExit) as error:
        raise errors.UsageError(
            f"{label} raised {type(error).__name__} while it was loaded:\n{_users_traceback(error)}"
        ) from error
    finally:
        _loading = before


def _users_traceback(error: BaseException) -> str:
    """The traceback, without the frames before the user's code."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(
        (__file__, "<frozen importlib", importlib.__file__)
    ):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()
