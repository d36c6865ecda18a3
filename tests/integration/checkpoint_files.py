"""The files of a checkpoint, read by the description of the format and nothing else; their hash by the library that the engine uses."""
import ctypes
import json
import struct


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh128(data):
    """XXH3 of 128 bits, as xxh128sum prints it."""
    hashing = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    hashing.restype, hashing.argtypes = Digest, (ctypes.c_char_p, ctypes.c_size_t)
    d = hashing(data, len(data))
    return f"{d.high:016x}{d.low:016x}"


def read_safetensors(path):
    """The format's description and nothing else: length, JSON header, bytes."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        body = raw[8 + length + begin:8 + length + end]
        count = 1
        for d in t["shape"]:
            count *= d
        assert len(body) == count * {"F32": 4, "I64": 8}[t["dtype"]], (name, t)
        tensors[name] = (t["dtype"], t["shape"], body)
    return tensors
