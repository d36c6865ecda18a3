"""libddpinfer by ctypes, for tests and benchmarks: a model that is open, and its outputs as floats."""
import array
import ctypes as c


class Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_int), ("rank", c.c_int), ("dims", c.c_int64 * 8), ("bytes", c.c_size_t)]

    def shape(self, batch):
        return [batch, *self.dims[:self.rank]]


class Error(c.Structure):
    _fields_ = [("text", c.c_char * 512)]


class Options(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("threads", c.c_int), ("device", c.c_char_p), ("plugins", c.c_char_p),
                ("set", c.c_void_p), ("set_count", c.c_size_t), ("log", c.c_void_p), ("log_ctx", c.c_void_p)]


class Model:
    """`build`: the build folder."""

    def __init__(self, build, ini, weights, threads=1):
        self.library = c.CDLL(str(build / ".libs/libddpinfer.so"))
        self.model, self.error = c.c_void_p(), Error()
        options = Options(struct_size=c.sizeof(Options), threads=threads, plugins=str(build / ".libs").encode())
        self.expect(self.library.ddp_infer_open(str(ini).encode(), str(weights).encode() if weights else None,
                                                c.byref(options), c.byref(self.model), c.byref(self.error)))
        self.inputs, self.outputs = (
            [self.describe(one, i) for i in range(getattr(self.library, one + "s")(self.model))]
            for one in ("ddp_infer_input", "ddp_infer_output"))

    def expect(self, code):
        if code != 0:
            raise RuntimeError(f"{code}: {self.error.text.decode()}")

    def describe(self, function, i):
        out = Tensor()
        self.expect(getattr(self.library, function)(self.model, i, c.byref(out)))
        return out

    def prepare(self, batch, inputs):
        """A call that runs `batch` samples and nothing else. `inputs`: addresses. Its result is self.answers."""
        self.answers = array.array("f", bytes(batch * self.outputs[0].bytes))
        ins = (c.c_void_p * len(inputs))(*inputs)
        outs = (c.c_void_p * len(self.outputs))(self.answers.buffer_info()[0])
        return lambda: self.library.ddp_infer_run(self.model, c.c_int64(batch), ins, outs, c.byref(self.error))

    def run(self, batch, *inputs):
        """Buffers of the array module, or of anything that has its bytes."""
        held = [array.array("B", bytes(x)) for x in inputs]
        self.expect(self.prepare(batch, [x.buffer_info()[0] for x in held])())
        return self.answers

    def close(self):
        self.library.ddp_infer_close(self.model)
