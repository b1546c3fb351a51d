"""libtsr as Python sees it: the shared library, and the declarations of its public headers.

Both are files of this package. The environment variables TSR_LIBRARY and TSR_DECLARATIONS name others: a library that
was built with CUDA, or those of a build folder.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import cffi  # type: ignore[import-untyped]

from ._errors import error_of

_folder = Path(__file__).parent


def _load() -> tuple[Any, Any]:
    declarations = os.environ.get("TSR_DECLARATIONS") or str(_folder / "declarations.h")
    library = os.environ.get("TSR_LIBRARY") or str(_folder / "libtsr.so")
    ffi = cffi.FFI()
    with open(declarations, encoding="utf-8") as file:
        ffi.cdef(file.read())
    lib = ffi.dlopen(library)
    # A config starts with its own size: a library of other headers has another one.
    for config in ("model_config", "runtime_config", "fit_config", "program_config"):
        size = ffi.sizeof(f"tsr_{config}")
        theirs = getattr(lib, f"tsr_{config}_init")(ffi.new(f"tsr_{config} *"), size)
        if theirs != size:
            raise ImportError(
                f"{library}: tsr_{config} has {theirs} bytes, but {size} by {declarations}; "
                "give a library and declarations of one version"
            )
    return ffi, lib


ffi, lib = _load()


def default(name: str) -> Any:
    """A pointer to a config with its defaults."""
    config = ffi.new(f"{name} *")
    getattr(lib, f"{name}_init")(config, ffi.sizeof(name))
    return config


def check(status: int) -> None:
    """Raise the failure of a call, with the library's sentence."""
    if status != 0:
        name = text(lib.tsr_status_name(status))
        raise error_of(name, text(lib.tsr_last_error()))


def text(pointer: Any) -> str:
    """A text of the library. Names of files and models may hold bytes that are not UTF-8."""
    return str(ffi.string(pointer).decode("utf-8", "replace"))


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """A path as C takes it."""
    return os.fsencode(path)


def printed(function: Any, *arguments: Any) -> str:
    """What a tsr_..._print() function writes."""
    pieces: list[str] = []

    @ffi.callback("void(const char *, void *)")  # type: ignore[untyped-decorator]
    def write(piece: Any, _user: Any) -> None:
        pieces.append(text(piece))

    function(*arguments, write, ffi.NULL)
    return "".join(pieces)


@functools.lru_cache(maxsize=None)
def enum_names(enum: str) -> dict[int, str]:
    """The names of an enum's values, those of the library where it has them: tsr_<enum>_name()."""
    elements = ffi.typeof(enum).relements
    if hasattr(lib, f"{enum}_name"):
        return {value: text(getattr(lib, f"{enum}_name")(value)) for value in sorted(elements.values())}
    prefix = os.path.commonprefix(list(elements))
    return {value: name.removeprefix(prefix).lower() for name, value in elements.items()}


def enum_value(enum: str, name: str) -> int:
    """The value with this name, in any letter case."""
    names = enum_names(enum)
    for value, known in names.items():
        if known.lower() == name.lower():
            return value
    raise error_of("ERR_INVALID", f"{enum.removeprefix('tsr_')} {name!r}: expected one of {', '.join(names.values())}")
