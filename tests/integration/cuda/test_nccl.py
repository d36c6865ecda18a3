"""Backend nccl in the real program on a machine that need not have a GPU: it loads and explains itself, and says in one line
what is missing. What it computes is tested over doubles in tests/unit/backend/test_nccl.c and, with device cuda, in
test_cuda_nccl.py, and by tests/gpu/run_nccl."""
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness import BUILD, Case, Skip

PLUGIN = BUILD / ".libs/backend_nccl.so"
DEVICE = BUILD / ".libs/device_cuda.so"  # loaded first; not built under the sanitizers
DOUBLE = BUILD / ".libs/nccl_double.so"
RUNTIME = BUILD / ".libs/libcuda_double.so"


class Nccl(Case):
    def need(self, *files):
        for f in files:
            if not f.exists():
                raise Skip(f"{f.name} is not built")

    def refused(self, code, device, options, *parts, nproc=1):
        """Runs with doubles of the libraries, but for `options`: one error line, at the place of the choice."""
        self.need(PLUGIN, DOUBLE, *([DEVICE] if device != "cpu" else []))
        libraries = {"library": DOUBLE, "cuda_library": RUNTIME, "driver_library": RUNTIME, **options}
        path = self.ini("x.ini", {"group": {"backend": "nccl"}, "train": {"device": device}, "backend.nccl": libraries})
        for args in (["-c", path], ["-c", path, "--check"], ["-c", path, "--nproc", 2])[:3 if nproc == 2 else 2]:
            r = self.run(*args)
            self.fails(r, code, "x.ini:", 'backend "nccl": ', *parts)
            self.equal(len(r.errors()), 1, r)

    def test_missing_libraries(self):
        self.refused(3, "cuda", {"library": "libnccl-none.so.2"}, "NCCL cannot be loaded", "libnccl-none.so.2", "libnccl2")
        self.refused(3, "cuda:0", {"cuda_library": "libcudart-none.so.13"}, "the CUDA runtime cannot be loaded")
        self.refused(3, "cuda", {"driver_library": "libcuda-none.so.1"}, "the NVIDIA driver cannot be loaded",
                     "libcuda-none.so.1", "backend = gloo-tcp", nproc=2)

    def test_device_that_is_no_gpu_of_this_machine(self):
        self.refused(2, "cpu", {}, "[train] device = cpu is host memory", "gloo-tcp, shm or mpi", nproc=2)
        self.refused(2, "cuda:9", {}, "CUDA device 9", "has 2")

    def test_real_libraries_where_there_is_no_driver(self):
        self.need(PLUGIN, DEVICE)
        if shutil.which("nvidia-smi"):
            raise Skip("this machine has a driver")
        r = self.run("-c", self.ini("x.ini", {"group": {"backend": "nccl"}, "train": {"device": "cuda"}}))
        self.fails(r, 3, "x.ini:", "cannot be loaded")

    def test_plugin_explains_itself(self):
        self.need(PLUGIN)
        r = self.run("plugins", "nccl")
        self.equal(r.code, 0, r)
        for part in ("NCCL library", "[backend.nccl]", "libnccl.so.2", "libcudart.so.", "libcuda.so.1", "register"):
            self.check(part in r.out, (part, r.out))
        needed = subprocess.run(["readelf", "-d", PLUGIN], capture_output=True, text=True, check=True).stdout
        for name in ("libnccl", "libcuda"):
            self.check(name not in needed, needed)


if __name__ == "__main__":
    sys.exit(harness.main(Nccl))
