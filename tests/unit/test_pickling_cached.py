"""A function under ``functools.lru_cache`` travels by value where the function itself does: its
cache stays behind."""

from __future__ import annotations

import io
import sys
import urllib.parse
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from txtopo.dataplane import wire
from txtopo.topology import pickling

CODE = """
import functools

@functools.lru_cache(maxsize=7)
def norm(word):
    return word.upper()

@functools.cache
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)

class Split:
    def words(self, line):
        return [norm(word) for word in line.split()], depth(3)

    @functools.lru_cache
    def once(self, word):
        return norm(word)
"""


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A file that `txtopo run` was given."""
    module = ModuleType("cached_functions")
    sys.modules[module.__name__] = module
    exec(CODE, vars(module))
    pickling.travel_by_value(module)
    yield module
    pickling.cloudpickle.unregister_pickle_by_value(module)
    sys.modules.pop(module.__name__, None)


def elsewhere(module: ModuleType, data: bytes) -> Any:
    """``data`` as unpickled by a process that cannot import ``module``."""
    del sys.modules[module.__name__]
    try:
        return pickling.loads(data)
    finally:
        sys.modules[module.__name__] = module


def test_a_cached_function_travels_with_the_code_that_calls_it(module: ModuleType) -> None:
    for data in (pickling.dumps(module.Split()), pickling.dumps_with_classes(module.Split())[0]):
        split = elsewhere(module, data)
        assert split.words("a b") == (["A", "B"], 3)
        assert split.once("c") == "C"


def test_a_cached_function_keeps_its_parameters_and_leaves_its_cache(module: ModuleType) -> None:
    module.norm("a")
    norm = elsewhere(module, pickling.dumps(module.norm))
    assert norm.cache_parameters() == {"maxsize": 7, "typed": False}
    assert norm.cache_info().currsize == 0
    assert norm.__name__ == "norm"


def test_a_cached_function_may_be_a_value_of_a_tuple(module: ModuleType) -> None:
    buffer = io.BytesIO()
    wire.ReferencePickler(buffer, "a run").dump(module.norm)
    assert elsewhere(module, buffer.getvalue())("a") == "A"


def test_a_cached_function_of_a_package_is_named_and_not_carried() -> None:
    assert hasattr(urllib.parse.urlsplit, "cache_info")
    assert pickling.loads(pickling.dumps(urllib.parse.urlsplit)) is urllib.parse.urlsplit
