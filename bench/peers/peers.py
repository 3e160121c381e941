"""attn and its peers behind one interface: prepare a call once, run it often.

Each class has `prepare(row, q, k, v)`. The arrays are (batch, heads, length, dim), contiguous. A peer
that wants another layout gets it there, outside the timing. What a peer cannot do raises an
exception, whose text is kept with the results.
"""

import ctypes
import dataclasses
import typing
import weakref

import numpy as np


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of attention, ready to run."""

    run: typing.Callable  # what is timed
    output: typing.Callable  # its result, as an array (batch, heads, queries, dim)
    rewind: typing.Optional[typing.Callable] = None  # before two runs, where each leaves a trace


class Unsupported(Exception):
    """A row that a peer has no operator for."""


class Attn:
    name = "attn"

    def __init__(self, threads, library):
        self.threads = threads
        self.library = ctypes.CDLL(str(library))
        self.library.attn_peers_prepare.restype = ctypes.c_void_p
        self.library.attn_peers_instruction_set.restype = ctypes.c_char_p
        self.library.attn_peers_compiler.restype = ctypes.c_char_p

    def version(self):
        instructions = self.library.attn_peers_instruction_set().decode()
        return f"-O2, GCC {self.library.attn_peers_compiler().decode()}, {instructions}"

    def prepare(self, row, q, k, v):
        out = np.empty_like(q)
        sizes = (ctypes.c_int64 * 6)(*row.sizes)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (q, k, v, out)]
        call = ctypes.c_void_p(
            self.library.attn_peers_prepare(
                sizes, row.dtype == "bfloat16", row.causal, self.threads, *pointers
            )
        )
        attend = self.library.attn_peers_run

        def run():
            attend(call)

        weakref.finalize(run, self.library.attn_peers_release, call)
        return Call(run, lambda: out)


class Torch:
    name = "PyTorch"

    def __init__(self, threads):
        import torch

        self.torch = torch
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def version(self):
        return self.torch.__version__

    def tensor(self, array):
        if array.dtype == np.float32:
            return self.torch.from_numpy(array)
        return self.torch.from_numpy(array.view(np.uint16)).view(self.torch.bfloat16)

    def prepare(self, row, q, k, v):
        q, k, v = map(self.tensor, (q, k, v))
        attend = self.torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": row.causal, "enable_gqa": row.kv_heads != row.heads}
        result = []

        def run():
            result[:] = [attend(q, k, v, **options)]

        return Call(run, lambda: result[0].float().numpy())


class OnnxRuntime:
    """One node in a model, its inputs and outputs bound to memory beforehand."""

    def __init__(self, threads):
        import onnxruntime

        self.runtime = onnxruntime
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.options.inter_op_num_threads = 1

    def version(self):
        return self.runtime.__version__

    def bind(self, operator, domain, inputs, outputs, **attributes):
        """`inputs` and `outputs`: arrays by name, in the operator's order; None: not given."""
        import onnx
        from onnx import helper

        def infos(arrays):
            return [
                helper.make_tensor_value_info(name, self.type_of(array), array.shape)
                for name, array in arrays.items()
                if array is not None
            ]

        def names(arrays):
            return [name if array is not None else "" for name, array in arrays.items()]

        node = helper.make_node(
            operator, names(inputs), names(outputs), domain=domain, **attributes
        )
        graph = helper.make_graph([node], "attention", infos(inputs), infos(outputs))
        model = helper.make_model(
            graph,
            ir_version=10,
            opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)],
        )
        session = self.runtime.InferenceSession(
            model.SerializeToString(), self.options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, array in arrays.items():
                if array is not None:
                    bind(name, "cpu", 0, self.type_of(array), array.shape, array.ctypes.data)
        # The session, the binding and the arrays live as long as this function does.
        return lambda: session.run_with_iobinding(binding) or (inputs, outputs)

    @staticmethod
    def type_of(array):
        from onnx import helper

        return helper.np_dtype_to_tensor_dtype(array.dtype)


def packed(array):
    """(batch, heads, length, dim) -> (batch, length, heads * dim), contiguous."""
    batch, heads, length, dim = array.shape
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(batch, length, heads * dim)


def unpacked(array, heads):
    batch, length, width = array.shape
    return array.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


class OnnxRuntimeMha(OnnxRuntime):
    name = "ORT MultiHeadAttention"

    def prepare(self, row, q, k, v):
        if row.kv_heads != row.heads:
            raise Unsupported("has as many key/value heads as query heads")
        inputs = {"q": packed(q), "k": k, "v": v}  # k and v may come as (batch, heads, ...)
        outputs = {"out": np.empty_like(inputs["q"])}
        run = self.bind(
            "MultiHeadAttention",
            "com.microsoft",
            inputs,
            outputs,
            num_heads=row.heads,
            unidirectional=int(row.causal),
        )
        return Call(run, lambda: unpacked(outputs["out"], row.heads))


class OnnxRuntimeGqa(OnnxRuntime):
    """Always causal. A decoding step appends its key and value to the cache, in place."""

    name = "ORT GroupQueryAttention"

    def prepare(self, row, q, k, v):
        if not row.causal and not row.is_decode:
            raise Unsupported("is always causal")
        past = {"past_k": k, "past_v": v} if row.is_decode else {"past_k": None, "past_v": None}
        inputs = {
            "q": packed(q),
            "k": packed(k[:, :, -row.queries :]),
            "v": packed(v[:, :, -row.queries :]),
            **past,
            "last": np.full(row.batch, row.keys - 1, np.int32),
            "total": np.full(1, row.keys, np.int32),
        }
        outputs = {
            "out": np.empty_like(inputs["q"]),
            # The same memory as the past's: the cache is not copied.
            "present_k": k if row.is_decode else np.empty_like(k),
            "present_v": v if row.is_decode else np.empty_like(v),
        }
        run = self.bind(
            "GroupQueryAttention",
            "com.microsoft",
            inputs,
            outputs,
            num_heads=row.heads,
            kv_num_heads=row.kv_heads,
        )
        return Call(run, lambda: unpacked(outputs["out"], row.heads))


class OnnxRuntimeAttention(OnnxRuntime):
    name = "ORT Attention-23"

    def prepare(self, row, q, k, v):
        outputs = {"out": np.empty_like(q)}
        inputs = {"q": q, "k": k, "v": v}
        run = self.bind("Attention", "", inputs, outputs, is_causal=int(row.causal))
        return Call(run, lambda: outputs["out"])


class OpenVino:
    name = "OpenVINO"

    def __init__(self, threads):
        import openvino

        self.openvino = openvino
        self.core = openvino.Core()
        self.threads = threads

    def version(self):
        return self.openvino.__version__.split("-")[0]

    def element(self, row):
        types = self.openvino.Type
        return types.f32 if row.dtype == "float32" else types.bf16

    def config(self, row):
        return {
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": self.element(row),
        }

    def tensor(self, row, array):
        if row.dtype == "bfloat16":
            array = array.view(np.uint16)
        return self.openvino.Tensor(array, array.shape, self.element(row))

    def prepare(self, row, q, k, v):
        from openvino import opset13 as op

        parameters = [op.parameter(array.shape, self.element(row)) for array in (q, k, v)]
        query, key, value = parameters
        key, value = (self.repeat(op, row, kv) for kv in (key, value))
        result = op.scaled_dot_product_attention(query, key, value, causal=row.causal)
        model = self.openvino.Model([result], parameters, "attention")
        request = self.core.compile_model(model, "CPU", self.config(row)).create_infer_request()
        for index, array in enumerate((q, k, v)):
            request.set_input_tensor(index, self.tensor(row, array))
        out = np.empty_like(q)
        request.set_output_tensor(self.tensor(row, out))
        return Call(request.infer, lambda: out)

    @staticmethod
    def repeat(op, row, tensor):
        """Its operator has one head count: the graph repeats shared heads, as exported models do."""
        group = row.heads // row.kv_heads
        if group == 1:
            return tensor
        length = op.gather(op.shape_of(tensor), [2], 0)
        shape = op.concat([[row.batch, row.kv_heads, group], length, [row.dim]], 0)
        repeated = op.broadcast(op.unsqueeze(tensor, 2), shape, broadcast_spec="BIDIRECTIONAL")
        return op.reshape(repeated, [row.batch, row.heads, -1, row.dim], False)


class OpenVinoCache(OpenVino):
    """The same operator over keys and values that the model keeps, as its language models do.

    Every call appends a key and a value, so the cache is set back before each two calls.
    """

    name = "OpenVINO cache"

    def config(self, row):
        return {**super().config(row), "KV_CACHE_PRECISION": self.element(row)}

    def prepare(self, row, q, k, v):
        if not row.is_decode:
            raise Unsupported("is for decoding")
        caches = {"k": k, "v": v}
        request = self.core.compile_model(self.model(row), "CPU", self.config(row))
        request = request.create_infer_request()
        newest = [np.ascontiguousarray(array[:, :, -1:]) for array in (k, v)]
        for index, array in enumerate([q, *newest]):
            request.set_input_tensor(index, self.tensor(row, array))
        beams = np.arange(row.batch, dtype=np.int32)
        request.set_input_tensor(3, self.openvino.Tensor(beams))
        out = np.empty_like(q)
        request.set_output_tensor(self.tensor(row, out))

        def keep(length):
            for state in request.query_state():
                past = np.ascontiguousarray(caches[state.name][:, :, :length])
                state.state = self.tensor(row, past)

        def run():
            request.infer()
            return newest  # read at each call: must live as long

        def output():
            keep(row.keys - 1)
            run()
            return out

        def rewind():
            keep(row.keys - 2)

        rewind()
        return Call(run, output, rewind)

    def model(self, row):
        """The graph that OpenVINO knows as attention over a cache; batches can be reordered."""
        from openvino import opset13 as op

        shape = [row.batch, row.kv_heads, -1, row.dim]
        query = op.parameter([row.batch, row.heads, 1, row.dim], self.element(row))
        newest = [op.parameter(shape, self.element(row)) for _ in "kv"]
        beams = op.parameter([-1], self.openvino.Type.i32)
        inputs, writes = [], []
        for name, tensor in zip("kv", newest):
            variable = self.variable(row, name, shape)
            nothing = op.constant(np.zeros((row.batch, row.kv_heads, 0, row.dim), np.float32))
            past = op.read_value(op.convert(nothing, self.element(row)), variable)
            grown = op.concat([op.gather(past, beams, 0), tensor], 2)
            writes.append(op.assign(grown, variable))
            inputs.append(self.repeat(op, row, grown))
        result = op.result(op.scaled_dot_product_attention(query, *inputs))
        return self.openvino.Model([result], writes, [query, *newest, beams], "attention")

    def variable(self, row, name, shape):
        from openvino.op import util

        info = util.VariableInfo()
        info.variable_id = name
        info.data_shape = self.openvino.PartialShape(shape)
        info.data_type = self.element(row)
        return util.Variable(info)


class Jax:
    name = "JAX"

    def __init__(self, threads):
        import jax

        self.jax = jax
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def version(self):
        return self.jax.__version__

    def prepare(self, row, q, k, v):
        # Its layout is (batch, length, heads, dim).
        q, k, v = (self.jax.numpy.asarray(array.transpose(0, 2, 1, 3)) for array in (q, k, v))
        attend = self.jax.jit(
            lambda q, k, v: self.jax.nn.dot_product_attention(q, k, v, is_causal=row.causal)
        )
        attend = attend.lower(q, k, v).compile()
        result = []

        def run():
            result[:] = [attend(q, k, v).block_until_ready()]

        return Call(run, lambda: np.asarray(result[0]).transpose(0, 2, 1, 3))


PEERS = [Torch, OnnxRuntimeMha, OnnxRuntimeGqa, OnnxRuntimeAttention, OpenVino, OpenVinoCache, Jax]
