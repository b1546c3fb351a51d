"""Runtimes: the devices that a program runs on (tsr/runtime.h)."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ._config import Config
from ._handle import Object
from ._library import check, enum_names, enum_value, ffi, lib, text
from ._values import DeviceInfo, DeviceMemory, copy


class Runtime(Object):
    """Opened devices and their threads.

    devices: as --devices of the tool, "host:2,threads=1" or "cuda:0,cuda:1"; None: one host device per NUMA node.
    isa: kernels of host devices, "avx2"; None: the best of this machine.
    collectives: "auto", "peer", "pinned", "nccl", "staged".
    log: called with level ("warn", "info", "debug") and text, on the thread that makes the call.

    Closing a runtime closes its models and their sessions. Calls of several threads on one runtime wait for each other.
    """

    def __init__(
        self,
        devices: str | None = None,
        *,
        isa: str | None = None,
        collectives: str | None = None,
        log: Callable[[str, str], None] | None = None,
        log_level: str = "info",
    ) -> None:
        config = Config("tsr_runtime_config")
        for name, value in (("devices", devices), ("isa", isa), ("collectives", collectives)):
            if value is not None:
                setattr(config.pointer, name, config.text(value))
        callback = None
        if log is not None:
            logger = config.pointer.logger
            logger.fn = callback = _log_callback(log)
            logger.max_level = enum_value("tsr_log_level", log_level)
        out = ffi.new("tsr_runtime **")
        check(lib.tsr_runtime_open(config.pointer, out))
        self._own(out[0], lib.tsr_runtime_close, kept=callback)

    @property
    def devices(self) -> list[DeviceInfo]:
        """The opened devices with their bytes in use."""
        info = ffi.new("tsr_device_info *")
        devices = []
        with self._handle as runtime:
            for i in range(lib.tsr_runtime_n_devices(runtime)):
                check(lib.tsr_runtime_device(runtime, i, info))
                devices.append(copy(DeviceInfo, info))
        return devices

    def memory(self, device: int) -> DeviceMemory:
        """The memory of a device. Waits for running programs."""
        memory = ffi.new("tsr_device_memory *")
        with self._handle as runtime:
            check(lib.tsr_runtime_memory(runtime, device, memory))
        return copy(DeviceMemory, memory)

    def resplit(self, tensor_split: Sequence[float] | None = None) -> None:
        """Change the split of all models of the runtime: all of them change, or none. None: the planner chooses."""
        split = list(tensor_split or [])
        with self._handle as runtime:
            check(lib.tsr_runtime_resplit(runtime, split, len(split)))

    def drop_device(self, device: int | None) -> None:
        """Go on without a device: one that is lost (DeviceInfo.lost) or one that works; None: all that are lost.
        Models are planned for the others, and sequences are computed again where they were lost."""
        with self._handle as runtime:
            check(lib.tsr_runtime_drop_device(runtime, lib.TSR_LOST_DEVICES if device is None else device))


def _log_callback(log: Callable[[str, str], None]) -> Any:
    levels = enum_names("tsr_log_level")
    return ffi.callback("tsr_log_fn", lambda level, line, _user: log(levels[int(level)], text(line)))
