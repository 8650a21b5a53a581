"""A module in the place of cupy: its arrays hold arrays of numpy, and are none.

They enforce what cupy does: no implicit conversion to numpy, no mixing with numpy arrays, results
without axes are arrays and not numbers, no objects, no strings. `COUNTS` counts launches and waits.
"""

import operator
import sys
import types
from functools import partial

import numpy as np
import torch
from counts import COUNTS
from cuda_tensors import GPUS, Capsule, CudaTensor, on_cpu

# Functions that return a view, or only allocate.
_FREE = {"reshape", "ravel", "split", "array_split", "transpose", "squeeze", "expand_dims", "empty",
         "swapaxes", "broadcast_to", "atleast_1d", "atleast_2d", "view", "empty_like"}  # fmt: skip
# Functions whose arguments may be arrays of numpy: shapes, and places to split at.
_PLAIN = _FREE | {"zeros", "ones", "full", "arange", "zeros_like", "ones_like", "linspace"}


class ndarray:
    __slots__ = ("__weakref__", "own")
    __array_priority__ = 100
    __hash__ = None

    def __new__(cls, shape=None, dtype=float, memptr=None, strides=None, order="C", *, own=None):
        self = object.__new__(cls)
        self.own = np.zeros(shape, dtype, order) if own is None else own
        if self.own.dtype.kind in "OUSV":
            raise ValueError(f"Unsupported dtype {self.own.dtype}")
        return self

    shape = property(lambda self: self.own.shape)
    dtype = property(lambda self: self.own.dtype)
    ndim = property(lambda self: self.own.ndim)
    size = property(lambda self: self.own.size)
    nbytes = property(lambda self: self.own.nbytes)
    itemsize = property(lambda self: self.own.itemsize)
    strides = property(lambda self: self.own.strides)
    flags = property(lambda self: self.own.flags)
    T = property(lambda self: wrap(self.own.T))
    data = property(lambda self: types.SimpleNamespace(ptr=self.own.ctypes.data))
    device = property(lambda self: cuda.Device(0))

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def get(self, *args, **kwargs):
        COUNTS.wait("cupy get")
        return self.own.copy()

    def set(self, array, stream=None):
        COUNTS.launch("copy")
        self.own[...] = array

    def fill(self, value):
        COUNTS.launch("fill")
        self.own.fill(_read(value))

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        COUNTS.launch("astype", self.dtype != np.dtype(dtype))
        return wrap(self.own.astype(dtype, copy=copy))

    def toDlpack(self):
        if not self.size:  # cupy asks CUDA about its pointer, which is null
            raise RuntimeError("cudaErrorInvalidValue: invalid argument")
        return Capsule(self.own)

    def __len__(self):
        return len(self.own)

    def __iter__(self):
        return (wrap(np.asarray(x)) for x in self.own)

    def __repr__(self):
        return f"cupy{self.own!r}"

    def __copy__(self):
        return wrap(self.own.copy())

    def __deepcopy__(self, memo):
        return wrap(self.own.copy())

    def __getitem__(self, index):
        COUNTS.launch("getitem", not _is_basic(index))
        return wrap(np.asarray(self.own[_indices(index)]))

    def __setitem__(self, index, value):
        COUNTS.launch("setitem")
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")
        self.own[_indices(index)] = _read(value)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return _call(ufunc.__name__, getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, func, types, args, kwargs):
        if not all(issubclass(each, ndarray) for each in types):
            return NotImplemented
        return getattr(cupy, func.__name__)(*args, **kwargs)


def _read(x):
    return x.own if isinstance(x, ndarray) else x


def wrap(x):
    if isinstance(x, np.ndarray | np.generic):
        return ndarray(own=np.asarray(x))
    return [wrap(y) for y in x] if isinstance(x, list) else x


def _parts(index):
    return index if isinstance(index, tuple) else (index,)


def _is_basic(index):
    return all(
        isinstance(p, int | slice | type(None) | type(...) | np.integer) for p in _parts(index)
    )


def _indices(index):
    for part in _parts(index):
        if isinstance(part, np.ndarray | list):
            COUNTS.launch("copy")
        elif isinstance(part, ndarray) and part.dtype.kind == "b":
            COUNTS.wait("cupy boolean index")
    found = tuple(_read(part) for part in _parts(index))
    return found if isinstance(index, tuple) else found[0]


def _argument(x, name):
    if isinstance(x, np.ndarray) and name not in _PLAIN:
        raise TypeError(f"Unsupported type {type(x)} in cupy.{name}")
    if isinstance(x, list | tuple):
        return type(x)(_argument(y, name) for y in x)
    return _read(x)


def _call(name, function, args, kwargs):
    if name not in _FREE:
        COUNTS.launch(name)
    out = kwargs.get("out")
    out = out[0] if isinstance(out, tuple) else out
    args = [_argument(x, name) for x in args]
    result = function(*args, **{key: _argument(x, name) for key, x in kwargs.items()})
    return wrap(result) if out is None else out


def _number(name, convert):
    def method(self, *args):
        COUNTS.wait(f"cupy {name}")
        return convert(self.own, *args)

    return method


def _add_methods():
    for name, convert in {
        "__bool__": bool, "__float__": float, "__int__": int, "__index__": operator.index,
        "item": np.ndarray.item, "tolist": np.ndarray.tolist,
    }.items():  # fmt: skip
        setattr(ndarray, name, _number(name, convert))
    for name, ufunc in {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
        "floordiv": np.floor_divide, "mod": np.mod, "pow": np.power, "matmul": np.matmul,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "rshift": np.right_shift,
        "lshift": np.left_shift, "lt": np.less, "le": np.less_equal, "gt": np.greater,
        "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    }.items():  # fmt: skip
        own = {
            f"__{name}__": lambda a, b, f=ufunc: _call(f.__name__, f, (a, b), {}),
            f"__r{name}__": lambda a, b, f=ufunc: _call(f.__name__, f, (b, a), {}),
            f"__i{name}__": lambda a, b, f=ufunc: _call(f.__name__, f, (a, b), {"out": a}),
        }
        for method, function in own.items():
            setattr(ndarray, method, function)
    for name, ufunc in {"neg": np.negative, "invert": np.invert, "abs": np.absolute}.items():
        setattr(ndarray, f"__{name}__", lambda a, f=ufunc: _call(f.__name__, f, (a,), {}))
    for name in ("sum", "mean", "max", "min", "argmax", "argmin", "any", "all", "cumsum", "copy",
                 "reshape", "ravel", "transpose", "squeeze", "clip", "dot", "take", "swapaxes",
                 "view", "repeat", "var", "prod", "argsort", "flatten"):  # fmt: skip

        def method(self, *args, name=name, **kwargs):
            return _call(name, getattr(self.own, name), args, kwargs)

        setattr(ndarray, name, method)


_add_methods()


def _array(obj, dtype=None, copy=True, **kwargs):
    """From numpy: an asynchronous copy from pinned memory, as cupy does."""
    if torch_tensor := isinstance(obj, CudaTensor):
        obj = wrap(on_cpu(obj).numpy())
    if isinstance(obj, ndarray):
        COUNTS.launch("array", not torch_tensor and (bool(copy) or dtype not in (None, obj.dtype)))
        return wrap(np.array(obj.own, dtype=dtype, copy=True if copy else None))
    COUNTS.launch("copy")
    if isinstance(obj, list) and obj and isinstance(obj[0], ndarray):
        obj = [x.own for x in obj]
    return wrap(np.array(obj, dtype=dtype))


def _from_dlpack(capsule, *args, **kwargs):
    taken = capsule.take()
    if taken.dtype.__str__() == "torch.bfloat16":
        raise NotImplementedError("CuPy does not support bfloat16 yet")
    return wrap(taken.numpy())


class _Adam:
    """The kernel of thinc's Adam, the only one that it makes when it is imported."""

    def __init__(self, inputs, outputs, operation, name="", **kwargs):
        assert name == "adam", name

    def __call__(self, gradient, rate, one_minus_b1, one_minus_b2, eps, weights, m, v):
        COUNTS.launch("adam")
        d, w, m, v = (x.own for x in (gradient, weights, m, v))
        m += np.float32(one_minus_b1) * (d - m)
        v += np.float32(one_minus_b2) * (d * d - v)
        w -= np.float32(rate) * m / (np.sqrt(v) + np.float32(eps))


def _module(name, **names):
    module = types.ModuleType(name)
    sys.modules[name] = module
    vars(module).update(names)
    return module


def install():
    """Let `import cupy` find this; before thinc is imported."""
    global cupy, cuda
    functions = {}
    for name in dir(np):
        function = getattr(np, name)
        if isinstance(function, type) or name in ("pi", "inf", "nan", "newaxis"):
            functions[name] = function
        elif callable(function) and not name.startswith("_"):
            functions[name] = lambda *args, name=name, f=function, **kw: _call(name, f, args, kw)
    cupy = _module("cupy", **functions)
    cupy.__path__, cupy.__version__ = [], "14.2.0"
    cupy.ndarray, cupy.array, cupy.from_dlpack = ndarray, _array, _from_dlpack
    cupy.asarray = lambda a, dtype=None, **kw: _array(a, dtype, copy=False)
    cupy.ascontiguousarray = lambda a, dtype=None: wrap(np.ascontiguousarray(a.own, dtype))
    cupy.asnumpy = lambda a, **kw: a.get() if isinstance(a, ndarray) else np.asarray(a)
    cupy.save = lambda file, a, **kw: np.save(file, cupy.asnumpy(a))
    cupy.load = lambda file, **kw: wrap(np.load(file))
    cupy.copyto = lambda a, b, **kw: a.__setitem__(..., b)
    cupy.ElementwiseKernel = _Adam
    cupy.RawModule = cupy.RawKernel = cupy.ReductionKernel = lambda *args, **kwargs: None
    cupy.fuse = lambda *args, **kwargs: lambda function: function
    cupy.get_array_module = lambda *args: cupy if any(isinstance(a, ndarray) for a in args) else np
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(free_all_blocks=lambda: None)
    cupy.cublas = _module("cupy.cublas", nrm2=lambda X: _call("nrm2", np.linalg.norm, (X,), {}))
    cupy.random = _module("cupy.random", seed=lambda seed: np.random.seed(seed % 2**32))
    for name in ("uniform", "normal"):
        draw = partial(_call, "random", getattr(np.random, name))
        setattr(cupy.random, name, lambda *args, draw=draw, **kwargs: draw(args, kwargs))
    runtime = _module("cupy.cuda.runtime", getDeviceCount=lambda: GPUS)
    runtime.CUDARuntimeError = type("CUDARuntimeError", (RuntimeError,), {})
    runtime.runtimeGetVersion = lambda: 13000

    class Device:
        def __init__(self, number=0):
            if number >= GPUS:
                raise runtime.CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
            self.id = number

        def use(self):
            return self

        __enter__ = use

        def __exit__(self, *args):
            return None

    cuda = _module("cupy.cuda", runtime=runtime, Device=Device, set_allocator=lambda f=None: None)
    cuda.device = _module("cupy.cuda.device", Device=Device)
    cuda.Stream = lambda **kwargs: types.SimpleNamespace(synchronize=lambda: None)
    cuda.stream = _module("cupy.cuda.stream", Stream=cuda.Stream)
    cuda.MemoryPool = lambda allocator=None: types.SimpleNamespace(malloc=None)
    cupy.cuda = cuda
    _replace_as_tensor()
    _module("cupyx", scatter_add=_scatter_add)

    import thinc.backends._custom_kernels as kernels
    from thinc.api import NumpyOps

    _replace_kernels(kernels, NumpyOps())


def _replace_as_tensor():
    """torch takes an array of cupy by its `__cuda_array_interface__`."""
    real = torch.as_tensor

    def as_tensor(data, *args, **kwargs):
        if isinstance(data, ndarray):
            data = CudaTensor(torch.from_numpy(data.own))
        return real(data, *args, **kwargs)

    torch.as_tensor = as_tensor


def _scatter_add(table, index, values):
    COUNTS.launch("scatter_add")
    np.add.at(table.own, _indices(index), values.own)


def _replace_kernels(kernels, ops):
    """thinc's own kernels, computed by its NumpyOps."""

    def floats(X):
        assert isinstance(X, ndarray) and X.dtype in ("float32", "float64"), X

    def pointwise(name):
        def kernel(*args, threads_per_block=128, num_blocks=128, **kwargs):
            floats(args[0])
            COUNTS.launch(name)
            own = {key: _read(x) for key, x in kwargs.items()}
            return wrap_all(getattr(ops, name)(*map(_read, args), **own))

        setattr(kernels, name, kernel)

    def reduction(name, launches):
        def kernel(X, lengths, **kwargs):
            floats(X)
            assert isinstance(lengths, ndarray) and lengths.dtype == "int32", lengths
            COUNTS.launch(name, launches)
            COUNTS.wait("lengths are checked")
            COUNTS.wait("lengths are checked")
            return wrap_all(getattr(ops, name)(X.own, lengths.own))

        setattr(kernels, name, kernel)

    def wrap_all(result):
        return tuple(map(wrap, result)) if isinstance(result, tuple) else wrap(result)

    for name in ("maxout", "mish", "swish", "gelu", "dish", "clipped_linear", "seq2col"):
        pointwise(name)
        pointwise(f"backprop_{name}")
    for name in ("reduce_mean", "reduce_sum", "reduce_max"):
        reduction(name, 5)
    for name in ("backprop_reduce_mean", "backprop_reduce_sum"):
        reduction(name, 4)

    def gather_add(table, indices, **kwargs):
        floats(table)
        assert isinstance(indices, ndarray) and indices.ndim == 2
        COUNTS.launch("gather_add", 2)
        COUNTS.wait("indices are checked")
        return wrap(ops.gather_add(table.own, np.ascontiguousarray(indices.own.astype("uint32"))))

    def hash(ids, seed, **kwargs):
        assert isinstance(ids, ndarray)
        COUNTS.launch("hash")
        return wrap(ops.hash(np.ascontiguousarray(ids.own), seed))

    kernels.gather_add, kernels.hash = gather_add, hash
