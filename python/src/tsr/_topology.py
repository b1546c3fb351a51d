"""Machines as values (tsr/topology.h, tsr/machine.h)."""

from __future__ import annotations

import os
from typing import Any

from ._config import Config
from ._handle import Object
from ._library import check, ffi, lib, path_bytes, printed, text
from ._values import Core, Gpu, NumaNode, Package, copy


class Topology(Object):
    """A machine: this one, Topology(), or another one by load() or parse(). str() of one is the tree of `tsr topo`."""

    def __init__(self) -> None:
        out = ffi.new("tsr_topology **")
        check(lib.tsr_topology_discover(ffi.NULL, out))
        self._own(out[0], lib.tsr_topology_destroy)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, cards: str | None = None) -> Topology:
        """The machine of a description, as --machine-file: hwloc or NCCL XML, `nvidia-smi topo -m`, a copy of /sys and
        /proc, or "synthetic:...". cards: which cards its GPUs are, "0=rtx3090"."""
        return cls._read(lib.tsr_topology_load, path_bytes(path), cards)

    @classmethod
    def parse(cls, description: str) -> Topology:
        """The machine of words, as --machine: "2x rtx3090 nvlink, 1x host 64GiB 50GB/s"."""
        return cls._read(lib.tsr_topology_parse, description.encode(), None)

    @classmethod
    def _read(cls, function: Any, argument: bytes, cards: str | None) -> Topology:
        config = Config("tsr_topology_config")
        if cards is not None:
            config.pointer.cards = config.text(cards)
        out = ffi.new("tsr_topology **")
        check(function(argument, config.pointer, out))
        self = cls.__new__(cls)
        self._own(out[0], lib.tsr_topology_destroy)
        return self

    @property
    def source(self) -> str:
        """ "this machine", or where the description came from."""
        with self._handle as topology:
            return text(topology.source)

    @property
    def packages(self) -> list[Package]:
        """The sockets."""
        with self._handle as topology:
            return [copy(Package, topology.packages[i]) for i in range(topology.n_packages)]

    @property
    def numa_nodes(self) -> list[NumaNode]:
        """The NUMA nodes."""
        with self._handle as topology:
            return [copy(NumaNode, topology.numa_nodes[i]) for i in range(topology.n_numa_nodes)]

    @property
    def cores(self) -> list[Core]:
        """The cores that this process may use."""
        with self._handle as topology:
            return [copy(Core, topology.cores[i]) for i in range(topology.n_cores)]

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs."""
        with self._handle as topology:
            return [copy(Gpu, topology.gpus[i]) for i in range(topology.n_gpus)]

    def __str__(self) -> str:
        with self._handle as topology:
            return printed(lib.tsr_topology_print, topology)


def open_machine(machine: Topology | str | None) -> Topology:
    """The topology that an argument `machine` names: None is this machine, a text is a description in words."""
    if isinstance(machine, Topology):
        return machine
    return Topology() if machine is None else Topology.parse(machine)
