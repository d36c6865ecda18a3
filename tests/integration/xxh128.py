"""The hash of a checkpoint's files, by the library that the engine uses."""
import ctypes


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh128(data):
    """XXH3 of 128 bits, as xxh128sum prints it."""
    hashing = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    hashing.restype, hashing.argtypes = Digest, (ctypes.c_char_p, ctypes.c_size_t)
    d = hashing(data, len(data))
    return f"{d.high:016x}{d.low:016x}"
