"""The thinc layer around the network: where arrays of thinc and tensors of torch meet.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of the longest doc, C tags.
"""

import os
from dataclasses import asdict
from functools import cached_property, partial
from io import BytesIO
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import (
    ArgsKwargs,
    Model,
    Optimizer,
    PyTorchGradScaler,
    PyTorchShim,
    Shim,
    chain,
    get_torch_default_device,
    torch2xp,
    xp2torch,
)
from thinc.layers.pytorchwrapper import forward as pytorch_forward
from thinc.types import Floats1d, Floats2d, Ints1d
from thinc.util import get_width
from torch import Tensor

from . import crf
from .network import Network, Switches

# The child of a fork, as nlp.pipe(n_process=2) makes them, cannot use the threads that torch has
# started in its parent: it would wait for them for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

# Bool (C, C), (C,), (C,): what may follow what, and stand first and last.
Constraints = Tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


class Potentials(NamedTuple):
    """What the model puts out: the potentials of a linear-chain CRF for each doc of a batch.

    emissions: (N, C).
    lengths: (B,) on the CPU, tokens of each doc; they sum to N, some may be 0.
    transitions: (C, C), indexed [from, to].
    start: (C,).
    end: (C,).
    constrained: Whether the distribution gives illegal tag sequences no probability. A CRF's
        does; that of a softmax, where each token stands alone, does not.
    """

    emissions: Floats2d
    lengths: NDArray[np.int64]
    transitions: Floats2d
    start: Floats1d
    end: Floats1d
    constrained: bool


def bilstm_crf(
    tok2vec: Model[List[Doc], List[Floats2d]],
    rnn: str = "lstm",
    hidden_width: int = 200,
    depth: int = 1,
    dense_width: int = 0,
    dropout: Optional[float] = None,
    decoder: str = "crf",
    learn_rate_multiplier: float = 1.0,
    mixed_precision: bool = False,
    nO: Optional[int] = None,
) -> Model[List[Doc], Potentials]:
    """Build `spacy-crf-ner.BiLSTMCRF.v1`: a recurrent encoder and a CRF over token vectors.

    tok2vec: Any layer from docs to one vector a token, a listener to a transformer among them.
    rnn: Recurrent encoder: "lstm", "gru", "rnn" or "none". It reads in both directions.
    hidden_width: Its width per direction.
    depth: Its number of layers.
    dense_width: Width of a dense layer with ReLU between encoder and projection; 0 for none.
    dropout: Rate on what goes into and comes out of the recurrent encoder; None takes the
        rate of the update, which is `training.dropout`.
    decoder: "crf" learns transitions, and gives illegal tag sequences no probability. "softmax"
        scores each token for itself. What is predicted is a legal sequence with both.
    learn_rate_multiplier: The head learns at this times the optimizer's rate; 10 or more where
        a pretrained transformer below needs a small one.
    mixed_precision: Run the recurrent encoder in float16 on a GPU, with scaled gradients; on a
        CPU it has no effect. The CRF runs in float32 always.
    nO: Number of tags, C; usually None, to be set when the labels are known.

    Raises ValueError for a setting out of its range.
    """
    switches = Switches(
        rnn=rnn,
        hidden_width=hidden_width,
        depth=depth,
        dense_width=dense_width,
        dropout=dropout,
        decoder=decoder,
    )
    head: Model[List[Floats2d], Potentials] = Model(
        "bilstm_crf",
        pytorch_forward,
        init=partial(_init_head, switches=switches),
        dims={"nI": None, "nO": nO},
        attrs={
            "convert_inputs": _convert_inputs,
            "convert_outputs": _convert_outputs,
            "dropout_rate": 0.0,
        },
        shims=[HeadShim(learn_rate_multiplier, mixed_precision)],
    )
    model: Model[List[Doc], Potentials] = chain(tok2vec, head)
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("output_layer", head)
    return model


def on_gpu() -> bool:
    """Tell whether a GPU is in use: `spacy-crf-ner.on_gpu.v1`, a value for `mixed_precision`."""
    return bool(get_torch_default_device().type == "cuda")


def grow(model: Model[List[Doc], Potentials], nO: int, like: int) -> None:
    """Give a model that is initialized more tags, after its own; see `Network.grown`."""
    head = model.get_ref("output_layer")
    cast(HeadShim, head.shims[0]).grow(nO, like)
    for node in (model, head):
        node.set_dim("nO", nO, force=True)


def loss(
    potentials: Potentials,
    gold: NDArray[np.int64],
    constraints: Constraints,
    wrong: Sequence[Tuple[int, Sequence[NDArray[np.bool_]]]] = (),
) -> Tuple[NDArray[np.float32], Potentials]:
    """Compute the negative log likelihood of the gold tags, and its gradient.

    gold: (N,) tag ids; negative where any tag may stand: those are summed over.
    constraints: The legal tag sequences.
    wrong: What is known not to be: a doc, and what would have to be allowed of it, (T, C), in one
        way or another; adds -log(1 - P), up to 13.8.

    Returns the loss of each doc (B,), and the gradient of their sum for the potentials.
    """
    tensors = [tensor.requires_grad_() for tensor in _tensors(potentials)]
    free = _chain(tensors, potentials.lengths, constraints if potentials.constrained else None)
    losses = _losses(free, gold, potentials.lengths)
    if wrong:
        losses = losses + _loss_of_wrong(free, wrong)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    # Where no doc has a second token, the transitions have no part in the loss.
    d_emissions, d_transitions, d_start, d_end = (
        _to_xp(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad)
        for tensor in tensors
    )
    gradient = potentials._replace(
        emissions=d_emissions, transitions=d_transitions, start=d_start, end=d_end
    )
    return losses.detach().cpu().numpy(), gradient


def log_loss(
    potentials: Potentials,
    gold: NDArray[np.int64],
    constraints: Constraints,
    temperature: float = 1.0,
) -> NDArray[np.float64]:
    """Compute the negative log likelihood of the gold tags in what is predicted, (B,).

    Unlike in `loss`, illegal tag sequences have no probability whatever the decoder, and there is
    no gradient.

    gold: (N,) tag ids; negative where any tag may stand: those are summed over.
    constraints: The legal tag sequences.
    temperature: Divides all scores.
    """
    # In float64: a search compares losses that lie close together.
    tensors = [tensor.double() / temperature for tensor in _tensors(potentials)]
    losses = _losses(_chain(tensors, potentials.lengths, constraints), gold, potentials.lengths)
    found: NDArray[np.float64] = losses.cpu().numpy()
    return found


def _losses(free: crf.Chain, gold: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tensor:
    """The negative log likelihood of gold tags, (N,), by doc: (B,)."""
    tags, mask = _pad(torch.from_numpy(gold).to(free.mask.device), lengths)
    missing = (tags < 0) & mask
    if missing.any():
        allowed = torch.nn.functional.one_hot(tags.clamp(min=0), free.emissions.shape[2]).bool()
        emissions = crf.clamp(free.emissions, allowed | missing.unsqueeze(2))
        clamped = free._replace(emissions=emissions)
        losses = crf.log_partition(free) - crf.log_partition(clamped)
    else:
        losses = -crf.log_likelihood(free, tags)
    # A doc without annotation teaches exactly nothing: Adam would make steps of rounding noise.
    return losses.masked_fill(~((tags >= 0) & mask).any(1), 0.0)


def _loss_of_wrong(
    free: crf.Chain, wrong: Sequence[Tuple[int, Sequence[NDArray[np.bool_]]]]
) -> Tensor:
    """Sum -log(1 - P) of what is wrong in each doc: (B,)."""
    device, (B, T, C) = free.mask.device, free.emissions.shape
    ways = [(doc, i, allowed) for i, (doc, ways) in enumerate(wrong) for allowed in ways]
    docs = torch.tensor([doc for doc, _, _ in ways], dtype=torch.int64, device=device)
    allowed = torch.ones((len(ways), T, C), dtype=torch.bool)
    for row, (_, _, part) in zip(allowed, ways):
        row[: len(part)] = torch.from_numpy(part)
    rows = free._replace(emissions=free.emissions[docs], mask=free.mask[docs])
    clamped = rows._replace(emissions=crf.clamp(rows.emissions, allowed.to(device)))
    p = (crf.log_partition(clamped) - crf.log_partition(rows)).exp()
    group = torch.tensor([i for _, i, _ in ways], dtype=torch.int64, device=device)
    p = p.new_zeros(len(wrong)).index_add(0, group, p)
    # Not quite 1, where the gradient would be infinite.
    losses = -torch.log1p(-p * (1.0 - 1e-6))
    of_doc = torch.tensor([doc for doc, _ in wrong], device=device)
    return losses.new_zeros(B).index_add(0, of_doc, losses)


def distill(
    potentials: Potentials, teacher: Potentials, constraints: Constraints
) -> Tuple[float, Potentials]:
    """Compute how far a distribution is from a teacher's: KL(teacher || it), and its gradient.

    The gradient is the difference of what both expect to see of each tag and transition. Of a
    model that knows more tags than its teacher, the distribution over the teacher's is compared.

    teacher: Potentials for the first C of the tags.
    constraints: The legal sequences of all tags.

    Returns the divergence, summed over docs, and its gradient for the potentials.
    """
    C = teacher.emissions.shape[1]
    follows, start, end = constraints
    legal = (follows[:C, :C], start[:C], end[:C]) if potentials.constrained else None
    theirs = [tensor.requires_grad_() for tensor in _tensors(teacher)]
    log_z = crf.log_partition(_chain(theirs, teacher.lengths, legal)).sum()
    expected = torch.autograd.grad(log_z, theirs)
    ours = [tensor.requires_grad_() for tensor in _tensors(potentials)]
    emissions, transitions, first, last = ours
    known = [emissions[:, :C], transitions[:C, :C], first[:C], last[:C]]
    divergence = crf.log_partition(_chain(known, potentials.lengths, legal)).sum() - log_z.detach()
    for counts, own, other in zip(expected, known, theirs):
        divergence = divergence + (counts * (other.detach() - own)).sum()
    gradients = torch.autograd.grad(divergence, ours, materialize_grads=True)
    d_emissions, d_transitions, d_start, d_end = map(_to_xp, gradients)
    gradient = potentials._replace(
        emissions=d_emissions, transitions=d_transitions, start=d_start, end=d_end
    )
    return float(divergence.detach()), gradient


class Distribution:
    """The tag sequences of each doc of a batch, by their probability.

    potentials: Of the docs.
    constraints: The legal tag sequences.
    allowed: (N, C) bool, which tags may stand at which tokens; None for all.
    temperature: Divides all scores. It changes no order of sequences, only how far they lie apart.
    """

    def __init__(
        self,
        potentials: Potentials,
        constraints: Constraints,
        allowed: Optional[NDArray[np.bool_]] = None,
        temperature: float = 1.0,
    ) -> None:
        self._potentials, self._constraints, self._allowed = potentials, constraints, allowed
        self._lengths, self._temperature = potentials.lengths, temperature
        self._chain = self._at(1.0)

    def best(self) -> List[NDArray[np.int64]]:
        """Find the most probable tag sequence of each doc: B arrays of tag ids, one a token."""
        tags, _ = crf.viterbi(self._chain)
        return [row[:length] for row, length in zip(tags.cpu().numpy(), self._lengths)]

    def nbest(self, n: int) -> List[List[Tuple[NDArray[np.int64], float]]]:
        """Find the n most probable tag sequences of each doc, fewer where fewer are legal.

        Returns for each doc pairs of tag ids, one a token, and their probability; best first.
        Raises ValueError for n below 1.
        """
        tags, scores = crf.nbest(self._chain, n)
        log_p = torch.stack([crf.log_likelihood(self._tempered, tags[:, i]) for i in range(n)], 1)
        log_p = log_p.masked_fill(scores == -torch.inf, -torch.inf)
        return [
            [(row[:length], p) for row, p in zip(rows, ps) if p > 0.0]
            for rows, ps, length in zip(tags.cpu().numpy(), log_p.exp().tolist(), self._lengths)
        ]

    def stretches(
        self, docs: NDArray[np.int64], starts: NDArray[np.int64], tags: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Compute the probability that stretches of tokens carry given tags: (S,).

        docs: (S,) rows of the batch. starts: (S,) first tokens. tags: (S, L), negative beyond.
        """
        device = self._chain.mask.device
        where = (torch.from_numpy(array).to(device) for array in (docs, starts, tags))
        return self._sums.log_stretches(*where).exp().cpu().numpy()

    def _at(self, temperature: float) -> crf.Chain:
        tensors = [tensor / temperature for tensor in _tensors(self._potentials)]
        if self._allowed is not None:
            allowed = torch.from_numpy(self._allowed).to(tensors[0].device)
            tensors[0] = crf.clamp(tensors[0], allowed)
        return _chain(tensors, self._lengths, self._constraints)

    @cached_property
    def _tempered(self) -> crf.Chain:
        return self._chain if self._temperature == 1.0 else self._at(self._temperature)

    @cached_property
    def _sums(self) -> crf.Sums:
        return crf.sum_paths(self._tempered)


class HeadShim(PyTorchShim):
    """Hold the network, build it when its widths are known, and let it learn at its own rate.

    learn_rate_multiplier: Times the optimizer's learning rate.
    mixed_precision: float16 where the network runs on a GPU.
    """

    def __init__(self, learn_rate_multiplier: float, mixed_precision: bool) -> None:
        mixed_precision = mixed_precision and on_gpu()
        super().__init__(
            None,
            mixed_precision=mixed_precision,
            grad_scaler=PyTorchGradScaler(mixed_precision),
            serialize_model=_serialize,
            deserialize_model=_deserialize,
        )
        self.learn_rate_multiplier = learn_rate_multiplier

    def attach(self, network: Network) -> None:
        """Take a network, and move it to the device in use."""
        self._model = network.to(get_torch_default_device())

    @property
    def network(self) -> Network:
        """The network. Raises ValueError where it is not built yet."""
        if self._model is None:
            raise ValueError(
                "The model has no weights yet: call nlp.initialize() on examples, or load a "
                "trained pipeline with spacy.load()."
            )
        return cast(Network, self._model)

    def grow(self, nO: int, like: int) -> None:
        """Exchange the network for one with more tags. Optimizers see other weights in it."""
        self.attach(self.network.grown(nO, like))
        with Shim.global_id_lock:
            Shim.global_id += 1
            self.id = Shim.global_id

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights with their gradients, at the multiplied rate."""
        if self._model is None:
            return
        if isinstance(optimizer, Optimizer):
            step = partial(optimizer, lr_scale=self.learn_rate_multiplier)
        else:
            # nlp.rehearse notes gradients for later: these here are set to zero.
            step = lambda key, weights, gradient: optimizer(key, weights, gradient.copy())  # noqa: E731
        super().finish_update(cast(Optimizer, step))


def _init_head(
    model: Model[List[Floats2d], Potentials],
    X: Optional[List[Floats2d]] = None,
    Y: Any = None,
    *,
    switches: Switches,
) -> None:
    """Build the network, with new weights, for the width of X and the number of tags nO."""
    if X is not None:
        model.set_dim("nI", get_width(X), force=True)
    shim = cast(HeadShim, model.shims[0])
    shim.attach(Network(switches, model.get_dim("nI"), model.get_dim("nO")))


def _convert_inputs(
    model: Model[List[Floats2d], Potentials], X: List[Floats2d], is_train: bool
) -> Tuple[ArgsKwargs, Callable[[ArgsKwargs], List[Floats2d]]]:
    network = cast(HeadShim, model.shims[0]).network
    lengths = np.array([len(x) for x in X], dtype=np.int64)
    flat = model.ops.flatten(X)
    features = xp2torch(flat, requires_grad=is_train, device=network.projection.weight.device)

    def backprop(d_inputs: ArgsKwargs) -> List[Floats2d]:
        return model.ops.unflatten(_to_xp(d_inputs.args[0]), cast(Ints1d, lengths))

    # thinc's set_dropout_rate does not reach inside a torch module: the rate goes along.
    args = (features, torch.from_numpy(lengths), model.attrs["dropout_rate"])
    return ArgsKwargs(args=args, kwargs={}), backprop


def _convert_outputs(
    model: Model[List[Floats2d], Potentials],
    inputs_outputs: Tuple[List[Floats2d], Tuple[Tensor, ...]],
    is_train: bool,
) -> Tuple[Potentials, Callable[[Potentials], ArgsKwargs]]:
    X, outputs = inputs_outputs
    # Copies: an optimizer changes the transitions in place, and what was predicted must stay.
    emissions, transitions, start, end = (_to_xp(output.clone()) for output in outputs)
    lengths = np.array([len(x) for x in X], dtype=np.int64)
    constrained = cast(HeadShim, model.shims[0]).network.constrained
    Y = Potentials(emissions, lengths, transitions, start, end, constrained)

    def backprop(dY: Potentials) -> ArgsKwargs:
        # The transitions of a softmax decoder are constants.
        learned = [(y, dy) for y, dy in zip(outputs, _tensors(dY)) if y.requires_grad]
        return ArgsKwargs(
            args=([y for y, _ in learned],),
            kwargs={"grad_tensors": [dy for _, dy in learned]},
        )

    return Y, backprop


def _serialize(network: Optional[Network]) -> bytes:
    if network is None:
        return b""
    sizes = {"switches": asdict(network.switches), "nI": network.nI, "nO": network.nO}
    stream = BytesIO()
    torch.save({"sizes": sizes, "state": network.state_dict()}, stream)
    return stream.getvalue()


def _deserialize(_: Any, data: bytes, device: torch.device) -> Optional[Network]:
    """Build the network from its stored sizes; nothing but tensors and plain values is read."""
    if not data:
        return None
    try:
        stored = torch.load(BytesIO(data), map_location=device, weights_only=True)
        sizes = stored["sizes"]
        network = Network(Switches(**sizes["switches"]), sizes["nI"], sizes["nO"])
        network.load_state_dict(stored["state"])
    except Exception as error:
        raise ValueError(
            "The stored weights cannot be read: expected what BiLSTMCRF wrote, sizes and a state "
            f"dict, got {len(data)} bytes that fail with a {type(error).__name__}. "
            "The file is truncated, or of another architecture: save the pipeline again."
        ) from error
    return network.to(device)


def _to_xp(tensor: Tensor) -> Any:
    """An array of thinc over the memory of a tensor; of which kind, the tensor's device says."""
    return torch2xp(tensor.detach())


def _tensors(potentials: Potentials) -> List[Tensor]:
    """Emissions (N, C), transitions (C, C), start and end (C,)."""
    arrays = (potentials.emissions, potentials.transitions, potentials.start, potentials.end)
    return [xp2torch(array) for array in arrays]


def _chain(
    tensors: List[Tensor], lengths: NDArray[np.int64], constraints: Optional[Constraints]
) -> crf.Chain:
    """The chain of `_tensors`, with the forbidden transitions, unless there are none."""
    flat, transitions, start, end = tensors
    emissions, mask = _pad(flat, lengths)
    result = crf.Chain(emissions, transitions, start, end, mask)
    if constraints is None:
        return result
    return crf.constrain(result, *(torch.from_numpy(c).to(flat.device) for c in constraints))


def _pad(flat: Tensor, lengths: NDArray[np.int64]) -> Tuple[Tensor, Tensor]:
    """(N, ...) -> (B, T, ...), zeros beyond the end of a doc, and the mask (B, T)."""
    ends = torch.from_numpy(lengths).to(flat.device)
    steps = torch.arange(int(lengths.max(initial=0)), device=flat.device)
    mask = steps[None, :] < ends[:, None]
    padded = flat.new_zeros((*mask.shape, *flat.shape[1:]))
    padded[mask] = flat
    return padded, mask
