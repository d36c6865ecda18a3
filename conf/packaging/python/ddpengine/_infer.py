"""load() and predict(): libddpinfer (ddpinfer.h) by ctypes, arrays by the buffer protocol."""
from __future__ import annotations

import ctypes as c
import dataclasses
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from ._program import BUNDLE, Error, settings

F32, I64 = 1, 2
FORMATS = {F32: ("f", "float32", 4), I64: ("q", "int64", 8)}
INTEGERS = {"l", "q"}  # int64 is "l" for numpy and "q" for array.array
MOST_DIMS = 8
LEVELS = ("debug", "info", "warning", "error")
LOG = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
Path = str | os.PathLike[str]


class _Error(c.Structure):
    _fields_ = [("text", c.c_char * 512)]


class _Options(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("threads", c.c_int), ("device", c.c_char_p), ("plugins", c.c_char_p),
                ("set", c.POINTER(c.c_char_p)), ("set_count", c.c_size_t), ("log", LOG), ("log_ctx", c.c_void_p)]


class _Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_int), ("rank", c.c_int), ("dims", c.c_int64 * MOST_DIMS), ("bytes", c.c_size_t)]


@functools.cache
def _library() -> c.CDLL:
    lib = c.CDLL(str(BUNDLE / "lib/libddpinfer.so.0"))
    lib.ddp_infer_open.argtypes = [c.c_char_p, c.c_char_p, c.POINTER(_Options), c.POINTER(c.c_void_p), c.POINTER(_Error)]
    lib.ddp_infer_close.argtypes, lib.ddp_infer_close.restype = [c.c_void_p], None
    for name in ("inputs", "outputs"):
        getattr(lib, f"ddp_infer_{name}").argtypes = [c.c_void_p]
    for name in ("input", "output"):
        getattr(lib, f"ddp_infer_{name}").argtypes = [c.c_void_p, c.c_int, c.POINTER(_Tensor)]
    lib.ddp_infer_run.argtypes = [c.c_void_p, c.c_int64, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p), c.POINTER(_Error)]
    return lib


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What a model reads or gives for one sample."""

    name: str  # "image", "logits"
    dtype: str  # "float32" or "int64", as numpy's
    shape: tuple[int, ...]  # without the batch dimension; (): one number

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def _tensors(handle: c.c_void_p, count: int, read: Callable[..., int]) -> tuple[Tensor, ...]:
    out = []
    for i in range(count):
        t = _Tensor()
        read(handle, i, c.byref(t))
        out.append(Tensor(t.name.decode(), FORMATS[t.dtype][1], tuple(t.dims[:t.rank])))
    return tuple(out)


def _dtype(tensor: Tensor) -> tuple[str, int]:
    return next((code, size) for code, name, size in FORMATS.values() if name == tensor.dtype)


def _take(tensor: Tensor, array: Any) -> tuple[memoryview[int], int]:
    """The bytes of an input, and how many samples it has."""
    code, size = _dtype(tensor)
    try:
        view = memoryview(array)
    except TypeError:
        raise TypeError(f"input {tensor.name!r}: {type(array).__name__} has no buffer; give a numpy array, an array.array or a memoryview of "
                        f"{tensor.dtype}") from None
    given = view.format.lstrip("@=<")
    if view.itemsize != size or (given != code and not {given, code} <= INTEGERS):
        raise TypeError(f"input {tensor.name!r} is {tensor.dtype}, the array has the format {view.format!r} of {view.itemsize} bytes: convert it, "
                        f"as by numpy's astype(\"{tensor.dtype}\")")
    numbers = view.nbytes // size
    shape = view.shape or ()
    flat = len(shape) == 1 and len(tensor.shape) > 0
    batch = numbers // tensor.count if flat else shape[0] if shape else 0
    if batch < 1 or (numbers != batch * tensor.count if flat else shape[1:] != tensor.shape):
        wanted = ", ".join(["batch", *map(str, tensor.shape)])
        raise ValueError(f"input {tensor.name!r} has the shape ({wanted}), the array ({', '.join(map(str, shape))}): reshape it; a flat array "
                         f"needs a multiple of {tensor.count} numbers")
    whole = view.c_contiguous and len(view.format) == 1  # else memoryview cannot cast it
    return (view if whole else memoryview(view.tobytes())).cast("B"), batch


def _empty(tensor: Tensor, batch: int) -> memoryview[Any]:
    code, size = _dtype(tensor)
    data: Any = memoryview(bytearray(batch * tensor.count * size))
    out: memoryview[Any] = data.cast(code, (batch, *tensor.shape))
    return out


def _address(data: memoryview[int]) -> tuple[int, object]:
    """Of bytes that stay where they are as long as the second value lives; those that are read-only are copied."""
    block = c.c_char * data.nbytes
    held = block.from_buffer_copy(data) if data.readonly else block.from_buffer(data)
    return c.addressof(held), held


class Model:
    """A trained model in this process; also a context manager, which closes it.

    inputs, outputs: tuples of Tensor, what it reads and gives, in this order.

    One call at a time: a call from another thread waits. With threads > 1 use the model from the thread that has loaded it, since
    that thread is one of them."""

    def __init__(self, ini: Path, weights: Path | None, threads: int, device: str | None, values: Mapping[str, object] | None,
                 log: Callable[[str, str], object] | None) -> None:
        lib, error, self._handle = _library(), _Error(), c.c_void_p()
        self._lock = threading.Lock()
        words = [s.encode() for s in settings(values)]

        def say(_: object, level: int, line: bytes) -> None:
            if log is not None:
                log(LEVELS[level], line.decode(errors="replace"))
        self._say = LOG(say)  # the library calls it as long as the model is open
        self._set = (c.c_char_p * max(len(words), 1))(*words)
        options = _Options(struct_size=c.sizeof(_Options), threads=threads, device=device.encode() if device else None,
                           plugins=os.fsencode(BUNDLE / "lib/ddpengine"), set=self._set, set_count=len(words), log=self._say)
        code = lib.ddp_infer_open(os.fsencode(ini), os.fsencode(weights) if weights is not None else None, c.byref(options),
                                  c.byref(self._handle), c.byref(error))
        if code != 0:
            self._handle = c.c_void_p()
            raise Error(error.text.decode(errors="replace"), code)
        self.inputs = _tensors(self._handle, lib.ddp_infer_inputs(self._handle), lib.ddp_infer_input)
        self.outputs = _tensors(self._handle, lib.ddp_infer_outputs(self._handle), lib.ddp_infer_output)

    def predict(self, *arrays: Any) -> Any:
        """Runs a batch. `arrays`: one for each of `inputs`, with the shape (batch, *shape), or flat with batch times so many numbers;
        numpy arrays, array.array, memoryview or whatever else has a buffer of float32 or int64. Images are as the model sees them: from
        0 to 1, resized and normalised.

        Gives a memoryview of the shape (batch, *shape), which numpy.asarray takes without a copy and .tolist() makes lists of; a tuple
        of them where the model has several outputs. The same batch gives the same bits as `ddpengine predict` computes of it.

        Raises TypeError and ValueError where an array does not fit, and Error where the model fails."""
        if len(arrays) != len(self.inputs):
            raise TypeError(f"the model reads {len(self.inputs)} arrays ({', '.join(t.name for t in self.inputs)}), not {len(arrays)}")
        taken = [_take(tensor, array) for tensor, array in zip(self.inputs, arrays, strict=True)]
        batches = {batch for _, batch in taken}
        if len(batches) != 1:
            raise ValueError(f"the arrays have {' and '.join(map(str, sorted(batches)))} samples: all need the same number")
        batch = batches.pop()
        outputs = [_empty(tensor, batch) for tensor in self.outputs]
        self._run(batch, [data for data, _ in taken], [view.cast("B") for view in outputs])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _run(self, batch: int, inputs: list[memoryview[int]], outputs: list[memoryview[int]]) -> None:
        error = _Error()
        held = [_address(data) for data in (*inputs, *outputs)]
        pointers = [address for address, _ in held]
        with self._lock:
            if not self._handle:
                raise ValueError("the model is closed")
            code = _library().ddp_infer_run(self._handle, batch, (c.c_void_p * len(inputs))(*pointers[:len(inputs)]),
                                            (c.c_void_p * len(outputs))(*pointers[len(inputs):]), c.byref(error))
        if code != 0:
            raise Error(error.text.decode(errors="replace"), code)

    def close(self) -> None:
        """Gives memory back; a second call does nothing."""
        with self._lock:
            handle, self._handle = self._handle, c.c_void_p()
            if handle:
                _library().ddp_infer_close(handle)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()


def load(ini: Path, weights: Path | None = None, *, threads: int = 1, device: str | None = None, set: Mapping[str, object] | None = None,  # pylint: disable=redefined-builtin
         log: Callable[[str, str], object] | None = None) -> Model:
    """Opens a trained model.

    ini: what it was trained with. weights: a checkpoint, a folder of checkpoints (the newest valid one), or a safetensors file; None:
    the newest of [checkpoint] dir, else [checkpoint] init_from. threads: compute threads. device: None is "cpu", whatever the INI says.
    set: keys in place of the INI's, as for `train`. log: is called with a level ("debug", "info", "warning", "error") and a line.

    Raises Error where the INI, a plugin or the weights cannot be used."""
    return Model(ini, weights, threads, device, set, log)


def predict(ini: Path, *arrays: Any, weights: Path | None = None, threads: int = 1, set: Mapping[str, object] | None = None) -> Any:  # pylint: disable=redefined-builtin
    """load(ini, weights).predict(*arrays), for a single batch."""
    with load(ini, weights, threads=threads, set=set) as model:
        return model.predict(*arrays)
