"""Environment in which Debian's PyTorch computes at its best on one thread."""
import pathlib
import re


def best():
    """Its OpenBLAS does not know newer CPUs with AVX-512 and takes slower kernels there; those it is told to take end by SIGILL on
    a CPU without AVX-512, which it knows."""
    wide = re.search(r"^flags.*\bavx512f\b", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **({"OPENBLAS_CORETYPE": "SkylakeX"} if wide else {})}
