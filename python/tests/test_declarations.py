"""What cffi read from the headers is what the compiler makes of them, and what the classes here have."""

import dataclasses
import os
import re
import typing

import pytest
from conftest import compiled

import tsr
from tsr import _config, _values

DECLARATIONS = open(os.environ["TSR_DECLARATIONS"], encoding="utf-8").read()
STRUCTS = [n for n in tsr.ffi.list_types()[0] if tsr.ffi.typeof(n).kind == "struct" and tsr.ffi.typeof(n).fields]
CLASSES = [c for c in vars(_values).values() if dataclasses.is_dataclass(c)]


def fields(kind, prefix="", base=0):
    """Path, offset and size of each field, those of nested structs without a name included."""
    for name, field in kind.fields:
        yield prefix + name, base + field.offset, tsr.ffi.sizeof(field.type)
        if field.type.kind == "struct" and field.type.fields:
            yield from fields(field.type, f"{prefix}{name}.", base + field.offset)


def test_structs_have_the_compilers_layout(tmp_path):
    lines, expected = [], []
    for struct in STRUCTS:
        kind = tsr.ffi.typeof(struct)
        lines.append(f'printf("%zu\\n", sizeof({struct}));')
        expected.append(str(tsr.ffi.sizeof(kind)))
        for path, offset, size in fields(kind):
            lines.append(
                f'printf("{struct}.{path} %zu %zu\\n", offsetof({struct}, {path}), sizeof((({struct} *)0)->{path}));'
            )
            expected.append(f"{struct}.{path} {offset} {size}")
    assert len(STRUCTS) > 50 and len(lines) > 400
    body = "\n".join(lines)
    printed = compiled(f"#include <stdio.h>\n#include <tsr/tsr.h>\nint main(void) {{\n{body}\n}}\n", tmp_path)
    assert printed.split("\n")[:-1] == expected


def test_enums_have_the_compilers_values(tmp_path):
    enums = [n for n in tsr.ffi.list_types()[0] if tsr.ffi.typeof(n).kind == "enum"]
    values = {name: v for enum in enums for name, v in tsr.ffi.typeof(enum).relements.items()}
    body = "\n".join(f'printf("%d\\n", (int){name});' for name in values)
    printed = compiled(f"#include <stdio.h>\n#include <tsr/tsr.h>\nint main(void) {{\n{body}\n}}\n", tmp_path)
    assert len(values) > 80 and [int(v) for v in printed.split()] == list(values.values())


def test_the_library_has_every_function():
    functions = set(re.findall(r"\b(tsr_\w+)\(", re.sub(r"\(\*\w+\)\([^;]*;", "", DECLARATIONS)))
    assert len(functions) > 200
    missing = [name for name in sorted(functions) if not hasattr(tsr.lib, name)]
    assert missing == []


def annotation(name, kind):
    """How a class says a field of this C type."""
    if kind.kind == "array" and kind.item.cname != "char":
        item = annotation("", kind.item)
        return f"dict[str, {item}]" if name in _values._indexed else f"tuple[{item}, ...]"
    if kind.kind in ("array", "enum"):
        return "str"
    if kind.kind == "struct":
        return _values._classes[kind.cname.removeprefix("struct ")].__name__
    return {"_Bool": "bool", "double": "float"}.get(kind.cname, "int")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_classes_have_the_fields_of_their_structs(cls):
    kinds = {name: kind for name, kind in tsr.ffi.typeof(_values.struct_name(cls)).fields if name != "reserved"}
    own = {f.name: f.type.removesuffix(" | None") for f in dataclasses.fields(cls)}
    if cls is not _values.Gpu:  # has some fields only
        assert list(own) == list(kinds)
    assert own == {name: annotation(name, kinds[name].type) for name in own}


def test_every_option_of_a_model_is_read():
    """An option that ModelConfig names and model_config() does not know raises TypeError."""
    for name, hint in typing.get_type_hints(tsr.ModelConfig).items():
        value = {int: 1, bool: False, str: "f16"}.get(hint, [])
        value = {
            "split_mode": "layer",
            "expert_split": "auto",
            "reduction": "f32",
            "offload_device": "0",
            "progress": print,
            "fit": {"n_ctx_min": 1, "type_k": "q8_0", "margins": [1]},
        }.get(name, value)
        _config.model_config(None, {name: value})
    with pytest.raises(TypeError, match="no option 'n_ctxx' of a model; there are split_mode"):
        _config.model_config(None, {"n_ctxx": 1})
