"""The failures of the library as exceptions. str() of one is the library's sentence, status the name of its code."""

from __future__ import annotations


class Error(Exception):
    """A call failed. The objects are as they were before the call."""

    status = "ERR"


class InvalidError(Error, ValueError):
    """An argument is wrong; the sentence names the argument."""

    status = "ERR_INVALID"


class ClosedError(InvalidError):
    """The object was closed before the call."""


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory is short; the sentence names device and bytes."""

    status = "ERR_MEMORY"


class InputOutputError(Error, OSError):
    """The operating system refused a file operation."""

    status = "ERR_IO"


class FormatError(Error, ValueError):
    """A file is malformed; the sentence names key or tensor."""

    status = "ERR_FORMAT"


class UnsupportedError(Error):
    """Well-formed, but this build or machine cannot do it."""

    status = "ERR_UNSUPPORTED"


class NotFoundError(Error, LookupError):
    """An object with this name does not exist."""

    status = "ERR_NOT_FOUND"


class FullError(Error):
    """A region of fixed size (KV pages, sequences) has no room; nothing was lost."""

    status = "ERR_FULL"


class RangeError(Error, ArithmeticError):
    """A partial sum left the range of the exact reduction, or was not a number."""

    status = "ERR_RANGE"


class TimeLimitError(Error, TimeoutError):
    """A deadline passed; the sentence names the device that did not arrive."""

    status = "ERR_TIMEOUT"


class DeviceError(Error):
    """A device call failed; retrying may help."""

    status = "ERR_DEVICE"


class DeviceLostError(DeviceError):
    """A device is unusable until its runtime is closed."""

    status = "ERR_DEVICE_LOST"


class CancelledError(Error):
    """The call was cancelled (Session.cancel())."""

    status = "ERR_CANCELLED"


_classes: dict[str, type[Error]] = {
    c.status: c
    for c in (
        InvalidError,
        OutOfMemoryError,
        InputOutputError,
        FormatError,
        UnsupportedError,
        NotFoundError,
        FullError,
        RangeError,
        TimeLimitError,
        DeviceError,
        DeviceLostError,
        CancelledError,
    )
}


def error_of(status: str, sentence: str) -> Error:
    """The exception for a status of the library."""
    return _classes.get(status, Error)(sentence)
