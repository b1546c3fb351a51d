"""Ownership: objects of the library, their owners, and the lock that they share.

The library's objects form trees: a runtime has models, a model has sessions. A tree is used by one thread at a time,
so each tree has one lock, which every call holds; Python's own lock (GIL) is released during calls. Closing an object
closes those below it first. A closed object raises ClosedError.
"""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import Any, Callable, TypeVar

from ._errors import ClosedError

_Self = TypeVar("_Self", bound="Object")


class _Tree:
    """The lock of a tree of objects, and those of its objects that Python has collected, but not closed yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holder = 0
        self.abandoned: list[Handle] = []

    def acquire(self) -> None:
        if self.holder == threading.get_ident():
            raise RuntimeError("a callback (log, progress) may not use the runtime that called it")
        self.lock.acquire()
        self.holder = threading.get_ident()

    def release(self) -> None:
        while self.abandoned:
            self.abandoned.pop().destroy_locked()
        self.holder = 0
        self.lock.release()


class Handle:
    """A pointer of the library with its owner. `with handle as pointer` holds the lock of the tree."""

    def __init__(
        self, name: str, pointer: Any, destroy: Callable[[Any], None], parent: Handle | None, kept: object
    ) -> None:
        self.name = name
        self.pointer = pointer
        self.kept = kept  # what the library may use until `destroy` returns
        self.tree: _Tree = parent.tree if parent else _Tree()
        self._destroy = destroy
        self._children: list[Handle] = []  # closed before this one, the newest first
        self._owners: list[Handle] = []
        if parent:
            parent.depend(self)

    def __enter__(self) -> Any:
        self.tree.acquire()
        if self.pointer is None:
            self.tree.release()
            raise ClosedError(f"{self.name}: used after it was closed; open another one")
        return self.pointer

    def __exit__(self, *_: object) -> None:
        self.tree.release()

    def destroy_locked(self) -> None:
        if self.pointer is None:
            return
        for child in reversed(self._children[:]):
            child.destroy_locked()
        pointer, self.pointer = self.pointer, None
        self._destroy(pointer)
        for owner in self._owners:
            owner._children.remove(self)
        self._owners.clear()

    def depend(self, user: Handle) -> None:
        """Close `user`, an object of the same tree, before this one."""
        if user not in self._children:
            self._children.append(user)
            user._owners.append(self)

    def close(self) -> None:
        self.tree.acquire()
        try:
            self.destroy_locked()
        finally:
            self.tree.release()

    def abandon(self) -> None:
        """Close from Python's collector, which runs at any place, also inside a call on this tree: the object is then
        closed at the end of that call."""
        if self.pointer is None:
            return
        self.tree.abandoned.append(self)
        if self.tree.lock.acquire(blocking=False):
            self.tree.holder = threading.get_ident()
            self.tree.release()


class Alive:
    """The pointer of an object, for calls that do not wait for the call in progress: those that cancel it."""

    def __init__(self, name: str, pointer: Any, destroy: Callable[[Any], None]) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.pointer = pointer
        self._destroy = destroy

    def __enter__(self) -> Any:
        self.lock.acquire()
        if self.pointer is None:
            self.lock.release()
            raise ClosedError(f"{self.name}: used after it was closed; open another one")
        return self.pointer

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def destroy(self, pointer: Any) -> None:
        """Instead of `destroy` itself."""
        with self.lock:
            self.pointer = None
        self._destroy(pointer)


class Object:
    """Base of the classes whose instances own an object of the library."""

    _handle: Handle

    def _own(
        self, pointer: Any, destroy: Callable[[Any], None], parent: Handle | None = None, kept: object = None
    ) -> None:
        """Take over a pointer that was just created; with a parent, inside of `with parent`."""
        self._handle = Handle(type(self).__name__, pointer, destroy, parent, kept)
        weakref.finalize(self, self._handle.abandon)

    @property
    def closed(self) -> bool:
        """Whether the object was closed, by itself or with its owner."""
        return self._handle.pointer is None

    def close(self) -> None:
        """Free the object and what belongs to it. Waits for a call of another thread. Closing twice is fine."""
        self._handle.close()

    def __enter__(self: _Self) -> _Self:
        with self._handle:
            return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tsr.{type(self).__name__}{' (closed)' if self.closed else ''}>"
