"""A Python function as a step of a compiled program on a CPU, for physics that another library computes in C.

XLA calls a C function with pointers to its buffers; here that function is Python's, by ctypes, and sees the buffers as
NumPy arrays. `jax.pure_callback` would do the same through arrays of JAX: it costs nearly twice as much a call, and
keeps a program out of the compile cache (decision 0020).
The structures are those of `xla/ffi/api/c_api.h`, which grow at their ends only.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import jax
import numpy as np

HostFunction = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]
"""Reads its first arrays and writes its second; all are float32."""
API_VERSION = (0, 1)
"""The oldest version of XLA's interface that has all that is used here."""
METADATA, EXECUTE, FLOAT32, INTERNAL = 1, 3, 11, 13
"""Members of XLA_FFI_Extension_Type, XLA_FFI_ExecutionStage, XLA_FFI_DataType and XLA_FFI_Error_Code."""


class _Extension(Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("struct_size", c_size_t), ("extensions", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extensions", c_void_p), ("dtype", c_int), ("data", c_void_p), ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class _Buffers(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extensions", c_void_p), ("size", c_int64), ("types", c_void_p),
        ("buffers", POINTER(POINTER(_Buffer))),
    ]  # fmt: skip


class _ErrorArguments(Structure):
    _fields_ = [("struct_size", c_size_t), ("extensions", c_void_p), ("message", c_char_p), ("code", c_int)]


_CreateError = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))


class _Api(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extensions", c_void_p), ("version", _Version), ("internal", c_void_p),
        ("create_error", _CreateError),
    ]  # fmt: skip


class _CallFrame(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extensions", POINTER(_Extension)), ("api", POINTER(_Api)), ("context", c_void_p),
        ("stage", c_int), ("arguments", _Buffers), ("results", _Buffers),
    ]  # fmt: skip


_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_CallFrame))
_registered: dict[str, Any] = {}
"""Handlers by name: XLA keeps pointers to them as long as the process lives."""


def register(name: str, function: HostFunction) -> None:
    """Make `function` callable by `jax.ffi.ffi_call(name, …)` on CPUs; the first one of a name stays."""
    if name in _registered:
        return

    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        try:
            if frame.extensions and frame.extensions.contents.type == METADATA:
                return _tell_metadata(frame)
            if frame.stage == EXECUTE:
                function(_arrays(frame.arguments), _arrays(frame.results))
        except BaseException as error:  # an exception must not pass through C
            return _error(frame, f"{type(error).__name__}: {error}")
        return None

    handler = _Handler(handle)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.cast(handler, c_void_p)), platform="cpu")
    _registered[name] = handler


def _tell_metadata(frame: _CallFrame) -> None:
    """Which version of the interface this handler speaks."""
    extension = ctypes.cast(frame.extensions, POINTER(_MetadataExtension)).contents
    metadata = extension.metadata.contents
    metadata.version.major, metadata.version.minor = API_VERSION
    metadata.traits = 0


def _arrays(buffers: _Buffers) -> list[np.ndarray]:
    return [_array(buffers.buffers[k].contents) for k in range(buffers.size)]


def _array(buffer: _Buffer) -> np.ndarray:
    """The buffer itself, not a copy."""
    if buffer.dtype != FLOAT32:
        raise TypeError(f"buffers are float32, and this one has XLA's type {buffer.dtype}")
    shape = tuple(buffer.dims[k] for k in range(buffer.rank))
    if 0 in shape:
        return np.zeros(shape, np.float32)
    count = int(np.prod(shape, dtype=np.int64))
    return np.ctypeslib.as_array(ctypes.cast(buffer.data, POINTER(ctypes.c_float)), (count,)).reshape(shape)


def _error(frame: _CallFrame, message: str) -> int | None:
    """The error that XLA raises in the thread that waits for the program."""
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), INTERNAL)
    return frame.api.contents.create_error(ctypes.byref(arguments))
