"""Code that travels by value keeps the name of its file, under any version of cloudpickle."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from txtopo.topology import pickling

FILE = "/home/alice/words.py"
CODE = """
def upper(word):
    def inner():
        return word.upper()
    return inner
"""


@pytest.fixture(params=["cloudpickle", "pyspark.cloudpickle"])
def over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the module ``pickling`` over the installed cloudpickle, or over the one of pyspark.

    The versions are 3.1.3 and 3.1.2 with the pinned packages."""
    monkeypatch.setitem(sys.modules, "cloudpickle", importlib.import_module(request.param))
    spec = importlib.util.spec_from_file_location("pickling_over_another", pickling.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


@pytest.fixture
def module(over: ModuleType) -> Iterator[ModuleType]:
    """A file that `txtopo run` was given."""
    module = ModuleType("travelling_words")
    sys.modules[module.__name__] = module
    exec(compile(CODE, FILE, "exec"), vars(module))
    over.travel_by_value(module)
    yield module
    over.cloudpickle.unregister_pickle_by_value(module)
    sys.modules.pop(module.__name__, None)


def test_code_that_travels_keeps_the_name_of_its_file(over: ModuleType, module: ModuleType) -> None:
    for data in (over.dumps(module.upper), over.dumps_with_classes(module.upper)[0]):
        upper = over.loads(data)
        assert upper is not module.upper
        assert (upper.__code__.co_filename, upper("a").__code__.co_filename) == (FILE, FILE)
        assert upper("a")() == "A"
