"""Values that contain themselves, in one container or through several."""

from __future__ import annotations

from typing import Any


def circles() -> dict[str, Any]:
    """The values, by name."""
    a_list: list[Any] = []
    a_list.append(a_list)
    twice: list[Any] = []
    twice.extend([twice, twice])
    a_dict: dict[str, Any] = {}
    a_dict["a"] = a_dict
    a_tuple: tuple[list[Any], ...] = ([],)
    a_tuple[0].append(a_tuple)
    several: list[Any] = []
    several.append({"a": (several,)})
    return {
        "a list": a_list,
        "a list with itself twice": twice,
        "a dict": a_dict,
        "a tuple": a_tuple,
        "several": several,
    }


CIRCLES = circles()
