"""torch tensors that say they are on a GPU, and are computed on the CPU.

They enforce what CUDA does: tensors of two devices meet only where torch admits it (a number or an
index on the CPU), none becomes a numpy array, float16 has the range of float16. As on a Mac, there
is no float64. `COUNTS` counts what makes a GPU slow. They do not show the rounding of CUDA, its
memory, its streams or any time.
"""

import contextlib
import ctypes
import os
import types
import warnings
from pathlib import Path

# torch looks for CUDA when it is imported: register first.
_lib = Path(os.environ["STANDIN_TORCH"], "lib", "libtorch_cpu.so")
ctypes.CDLL(str(_lib), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(os.environ["STANDIN_GUARD"])

import torch  # noqa: E402
from counts import COUNTS  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_map, tree_map_only  # noqa: E402

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")
GPUS = 2
# (major, minor) compute capability; 9.0 is a H100, 7.5 a T4.
CAPABILITY = tuple(int(part) for part in os.environ.get("STANDIN_CAPABILITY", "9.0").split("."))

# Operations that accept an index or lengths on the CPU.
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_MIXED = _INDEXED | {"copy_", "_to_copy", "set_", "_pack_padded_sequence"}
# Operations whose result has a size that the host must wait for.
_WAITING = {"nonzero", "masked_select", "_unique2", "unique_dim", "equal", "_local_scalar_dense"}
_ALLOCATING = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "_to_copy"}


class CudaTensor(torch.Tensor):
    """A tensor whose values are in `values`, a tensor on the CPU."""

    @staticmethod
    def __new__(cls, values, requires_grad=False):
        # As MPS, where no gradients are scaled; the scale is one number.
        if values.dtype is torch.float64 and values.numel() > 1:
            raise TypeError("Cannot convert a tensor to float64: the GPU has no float64.")
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=CUDA,
            requires_grad=requires_grad,
        )
        made.values_on_cpu = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})

    @property
    def data(self):
        return CudaTensor(self.values_on_cpu)

    @data.setter
    def data(self, new):
        self.values_on_cpu = new.values_on_cpu

    def data_ptr(self):
        return self.values_on_cpu.data_ptr()

    def untyped_storage(self):
        return self.values_on_cpu.untyped_storage()

    def __deepcopy__(self, memo):
        copied = CudaTensor(self.values_on_cpu.clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self):
        return f"CudaTensor({self.values_on_cpu!r})"

    def tolist(self):
        COUNTS.wait("tolist")
        return self.values_on_cpu.tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    __array__ = numpy


def on_cpu(x):
    """The values of a tensor of the GPU; anything else as it is."""
    return x.values_on_cpu.detach() if isinstance(x, CudaTensor) else x


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


def _dispatch(func, args, kwargs):
    name = func._schema.name.split("::")[1]
    given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)]
    cuda = [x for x in given if isinstance(x, CudaTensor)]
    cpu = [x for x in given if not isinstance(x, CudaTensor)]
    device = kwargs.get("device")
    device = None if device is None else torch.device(device)
    if name == "device" and cuda:
        return CUDA
    if not cuda and (device is None or device.type != "cuda"):
        return func(*args, **kwargs)
    _check_one_device(name, args, cuda, cpu)
    _count(name, func, args, kwargs, cuda, cpu, device)

    values = {id(x): on_cpu(x) for x in cuda}
    known = {id(v): x for x, v in ((x, values[id(x)]) for x in cuda)}
    down = lambda x: values.get(id(x), x) if isinstance(x, CudaTensor) else x  # noqa: E731
    own_args, own_kwargs = tree_map(down, args), tree_map(down, kwargs)
    if device is not None:
        own_kwargs["device"] = CPU
    own_kwargs.pop("pin_memory", None)
    result = _compute(name, func, own_args, own_kwargs)

    host = device is not None and device.type == "cpu"
    kept = {id(x) for x in cpu}

    def up(x):
        if id(x) in known:  # changed in place
            return known[id(x)]
        return x if host or id(x) in kept else CudaTensor(x)

    if name == "_pack_padded_sequence":  # its lengths stay on the CPU
        return up(result[0]), result[1]
    return tree_map_only(torch.Tensor, up, result)


def _check_one_device(name, args, cuda, cpu):
    if cuda and name not in _MIXED and any(x.dim() for x in cpu):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            f"and cpu! ({name})"
        )
    if cuda and name in _INDEXED and not isinstance(args[0], CudaTensor):
        raise RuntimeError("indices should be either on cpu or on the device of the indexed tensor")


def _count(name, func, args, kwargs, cuda, cpu, device):
    if name == "_to_copy":
        down, up = bool(cuda) and device == CPU, not cuda
        dtype = kwargs.get("dtype")
        if down or up or (dtype is not None and dtype != args[0].dtype):
            COUNTS.launch("copy" if down or up else "cast")
        if down or (up and not kwargs.get("non_blocking")):
            COUNTS.wait("copy to the host" if down else "blocking copy")
    elif name == "copy_" and cpu:
        up = isinstance(args[0], CudaTensor)
        non_blocking = (len(args) > 2 and args[2]) or kwargs.get("non_blocking")
        if not (up and non_blocking):
            COUNTS.wait("blocking copy" if up else "copy to the host")
    elif name in _WAITING or (name == "segment_reduce" and not kwargs.get("unsafe")):
        COUNTS.wait(name)
    elif name in _INDEXED:
        for index in args[1]:
            if index is not None and index.dtype is torch.bool:
                COUNTS.wait("boolean index")
            elif index is not None and not isinstance(index, CudaTensor):
                COUNTS.wait("index on the CPU")
    views = [r.alias_info for r in func._schema.returns]
    if name in _ALLOCATING or any(info is not None and not info.is_write for info in views):
        return
    # One launch for each array where the arrays of two lists differ in shape, as in CUDA.
    lists = [x for x in args if isinstance(x, list | tuple) and x and torch.is_tensor(x[0])]
    uneven = len(lists) == 2 and any(a.shape != b.shape for a, b in zip(*lists))
    COUNTS.launch(name, len(lists[0]) if name.startswith("_foreach") and uneven else 1)


def _compute(name, func, args, kwargs):
    if name in ("_softmax", "_log_softmax") and args[2]:  # float16 in, float32 out: only on CUDA
        return func(args[0].float(), args[1], False)
    if name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        return func(*args[:3], args[0].dtype).to(args[3])
    return func(*args, **kwargs)


# Recurrent layers: one call of cuDNN each


class _CudnnRNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, X, *weights):
        X_own, *own = (on_cpu(x).float().requires_grad_() for x in (X, *weights))
        with torch.enable_grad():
            Y, *state = call(X_own, own)
        ctx.graph, ctx.dtypes = ([Y, *state], [X_own, *own]), [x.dtype for x in (X, *weights)]
        COUNTS.launch("cudnn")
        return tuple(CudaTensor(x.detach().to(X.dtype)) for x in (Y, *state))

    @staticmethod
    def backward(ctx, *d_outputs):
        outputs, leaves = ctx.graph
        COUNTS.launch("cudnn", 2)  # of data, of weights
        d_own = [on_cpu(d).float() for d in d_outputs]
        gradients = torch.autograd.grad(outputs, leaves, d_own, allow_unused=True)
        return (None, *(CudaTensor(d.to(t)) for d, t in zip(gradients, ctx.dtypes)))


def _rnn(real):
    def layer(X, batch_sizes, hx, weights, *settings):
        if not isinstance(X, CudaTensor):
            return real(X, batch_sizes, hx, weights, *settings)
        assert not isinstance(batch_sizes, CudaTensor), "cuDNN reads the sizes on the host"
        if torch.is_autocast_enabled("cuda"):  # always to float16, also under bfloat16
            COUNTS.launch("cast", 1 + len(weights))
            X, weights = X.half(), [w.half() for w in weights]
        else:
            assert {w.dtype for w in weights} == {X.dtype}, "cuDNN: one dtype"
            if len({w.untyped_storage().data_ptr() for w in weights}) > 1:
                COUNTS.launch("copy", len(weights))
                warnings.warn(
                    "RNN module weights are not part of single contiguous chunk of memory. This "
                    "means they need to be compacted at every call, possibly greatly increasing "
                    "memory usage. To compact weights again call flatten_parameters().",
                    stacklevel=2,
                )
        lstm = isinstance(hx, tuple)
        start = [on_cpu(h).float() for h in (hx if lstm else [hx])]

        def call(X, own):
            return real(X, batch_sizes, tuple(start) if lstm else start[0], own, *settings)

        return _CudnnRNN.apply(call, X, *weights)

    return layer


def _flatten_parameters(self):
    weights = self._flat_weights
    if not weights or not all(isinstance(w, CudaTensor) for w in weights):
        return
    if weights[0].dtype is torch.bfloat16:  # not a type of cuDNN's
        return
    flat = torch.cat([w.values_on_cpu.reshape(-1) for w in weights])
    COUNTS.launch("copy", len(weights))
    for w, part in zip(weights, flat.split([w.numel() for w in weights])):
        w.values_on_cpu = part.view(w.shape)


def _attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """What CUDA's fused kernels compute."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    return torch.dropout(weights.to(value.dtype), dropout_p, dropout_p > 0) @ value


class Capsule:
    """A DLPack capsule: shares memory, and can be used once."""

    def __init__(self, array):
        self.array, self.used = array, False

    def take(self):
        assert not self.used, "a DLPack capsule can be used once"
        self.used = True
        return self.array


def _replace_dlpack():
    real_to, real_from = torch.utils.dlpack.to_dlpack, torch.utils.dlpack.from_dlpack

    def to_dlpack(tensor, *args, **kwargs):
        cuda = isinstance(tensor, CudaTensor)
        return Capsule(on_cpu(tensor)) if cuda else real_to(tensor, *args, **kwargs)

    def from_dlpack(capsule, *args, **kwargs):
        if isinstance(capsule, Capsule):
            return CudaTensor(torch.from_numpy(capsule.take()))
        return real_from(capsule, *args, **kwargs)

    torch.utils.dlpack.to_dlpack = torch.to_dlpack = to_dlpack
    torch.utils.dlpack.from_dlpack = torch.from_dlpack = from_dlpack


def _replace_storage():
    """Files have tensors of the CPU."""
    real = torch.save
    torch.save = lambda obj, *args, **kwargs: real(_copied_to_cpu(obj), *args, **kwargs)


def _copied_to_cpu(obj):
    if isinstance(obj, dict):
        return {key: _copied_to_cpu(value) for key, value in obj.items()}
    return on_cpu(obj).clone() if isinstance(obj, CudaTensor) else obj


def _replace_distributed():
    """gloo in the place of NCCL; like NCCL it takes tensors of the GPU alone."""
    import torch.distributed as dist

    real = dist.init_process_group

    def init_process_group(backend, *, device_id=None, **kwargs):
        assert (backend == "nccl") == (device_id is not None)
        real("gloo", **kwargs)
        if backend == "nccl":
            all_reduce = dist.all_reduce

            def only_cuda(tensor, *args, **kwargs):
                assert isinstance(tensor, CudaTensor), "NCCL: a tensor of the CPU"
                COUNTS.launch("nccl")
                return all_reduce(on_cpu(tensor), *args, **kwargs)

            dist.all_reduce = only_cuda

    dist.init_process_group = init_process_group


def install():
    """Let torch believe in GPUs, for the rest of the process."""
    torch.version.cuda = "13.0"
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    properties = types.SimpleNamespace(
        name="stand-in", major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=80 * 2**30
    )
    for name, value in {
        "_lazy_init": None,
        "is_available": True,
        "current_device": 0,
        "device_count": GPUS,
        "set_device": None,
        "manual_seed_all": None,
        "empty_cache": None,
        "synchronize": None,
        "max_memory_allocated": 2**20,
        "get_device_name": properties.name,
        "get_device_capability": CAPABILITY,
        "get_device_properties": properties,
    }.items():
        setattr(torch.cuda, name, lambda *args, value=value, **kwargs: value)
    torch.cuda.device = lambda device: contextlib.nullcontext()
    torch.amp.autocast_mode.torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    nn = torch.nn
    for mode in ("lstm", "gru", "rnn_tanh"):
        setattr(nn.modules.rnn._VF, mode, _rnn(getattr(nn.modules.rnn._VF, mode)))
    nn.RNNBase.flatten_parameters = _flatten_parameters
    fused = nn.functional.scaled_dot_product_attention

    def attention(query, *args, **kwargs):
        own = isinstance(query, CudaTensor)
        return (_attention if own else fused)(query, *args, **kwargs)

    nn.functional.scaled_dot_product_attention = attention
    _replace_dlpack()
    _replace_storage()
    _replace_distributed()
    _Mode().__enter__()
