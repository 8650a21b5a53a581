"""The optimizer: thinc's Adam, with settings by groups of parameters."""

import inspect
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.util import load_config, registry
from thinc.api import (
    Adam,
    Config,
    LayerNorm,
    Optimizer,
    constant,
    constant_then,
    decaying,
    warmup_linear,
)
from torch import nn

from pipelines import TOK2VEC, make_examples, small_transformers
from spacy_crf_ner.ml.shim import TorchShim
from spacy_crf_ner.training.optimizer import STEPS_AT_ZERO, STEPS_TO_MATCH, GroupedAdam

ROOT = Path(__file__).parents[2]
RATE, DECAY, EPS, BETAS = 1e-2, 0.1, 1e-8, (0.9, 0.999)


def arrays(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f")


NO_DECAY = {"no_decay": {"names": "bias|^b$", "L2": 0.0}}


def groups_of(config: str) -> dict[str, dict[str, Any]]:
    """The groups of a shipped config."""
    section = load_config(ROOT / "configs" / f"{config}.cfg", interpolate=True)
    groups: dict[str, dict[str, Any]] = section["training"]["optimizer"]["groups"]
    return groups


def decays(name: str, optimizer: Optimizer | None = None) -> bool:
    """Whether weights with no gradient shrink: Adam itself does not move them."""
    weights = np.ones((3, 2), dtype="f")
    groups = {"no_decay": groups_of("transformer")["no_decay"]}
    optimizer = optimizer or GroupedAdam(RATE, L2=DECAY, groups=groups)
    optimizer((1, name), weights, np.zeros((3, 2), dtype="f"))
    shrunk = np.full((3, 2), 1 - RATE * DECAY, dtype="f")
    assert np.array_equal(weights, np.ones((3, 2))) or np.allclose(weights, shrunk, atol=1e-7)
    return not np.array_equal(weights, np.ones((3, 2)))


def run(optimizer: Optimizer, name: str, steps: int = 5, lr_scale: float = 1.0) -> np.ndarray:
    """The weights after some steps on made-up gradients."""
    weights = arrays(0, 4, 3)
    for step in range(steps):
        optimizer((7, name), weights, arrays(1 + step, 4, 3), lr_scale=lr_scale)
        optimizer.step_schedules()
    return weights


def test_grouped_adam_signature_matches_adam_plus_groups() -> None:
    ours, theirs = (
        {name: p.default for name, p in inspect.signature(make).parameters.items()}
        for make in (GroupedAdam, Adam)
    )
    assert ours == theirs | {"groups": None}


def test_create_optimizer_builds_grouped_adam_from_config() -> None:
    config = Config().from_str(
        '[training]\n[training.optimizer]\n@optimizers = "spacy-crf-ner.Adam.v1"\n'
        "L2 = 0.1\n[training.optimizer.learn_rate]\n"
        '@schedules = "warmup_linear.v1"\nwarmup_steps = 2\ntotal_steps = 4\ninitial_rate = 0.1\n'
        '[training.optimizer.groups]\n[training.optimizer.groups.head]\nnames = "W"\n'
        "[training.optimizer.groups.head.learn_rate]\n"
        '@schedules = "warmup_linear.v1"\nwarmup_steps = 0\ntotal_steps = 4\ninitial_rate = 6.0\n'
    )
    optimizer: Any = spacy.blank("en", config=config).create_optimizer()
    rates, steps = [], []
    for t in range(5):
        rates.append(optimizer.learn_rate)
        weights = np.zeros((1, 1), dtype="f")
        optimizer((t, "W"), weights, np.ones((1, 1), dtype="f"))
        steps.append(weights.item())  # Adam's first step is the rate, before decay
        optimizer.step_schedules()
    assert rates == pytest.approx([0.0, 0.05, 0.1, 0.05, 0.0])
    expected = [-rate * (1 - 0.1 * rate) for rate in (0.0, 0.05 * 4.5, 0.1 * 3.0, 0.05 * 1.5, 0.0)]
    assert steps == pytest.approx(expected, rel=1e-5)
    assert optimizer.L2 == 0.1


# Loops that do not step schedules, as of `nlp.update` in Python


@pytest.mark.parametrize("together", [False, True])
def test_without_steps_highest_rate_is_used_from_second_update_on(together: bool) -> None:
    schedules = warmup_linear(RATE, 50, 1000), warmup_linear(4.0, 10, 20)
    groups = {"head": {"names": "head", "learn_rate": schedules[1]}}
    ours = GroupedAdam(schedules[0], groups=groups)
    module = nn.ParameterDict({name: nn.Parameter(torch.ones(4, 3)) for name in ("head", "x")})
    theirs = {name: Adam([0.0] + [RATE * k] * 9) for name, k in (("head", 4.0), ("x", 1.0))}
    expected = {name: np.ones((4, 3), dtype="f") for name in module}
    for step in range(5):
        for name, weights in module.items():
            gradient = arrays(step, 4, 3)
            theirs[name]((7, name), expected[name], gradient.copy())
            theirs[name].step_schedules()  # type: ignore[no-untyped-call]
            weights.grad = torch.from_numpy(gradient)
            if not together:
                ours((7, name), weights.detach().numpy(), gradient)
        if together:
            assert ours.update_together({(7, name): each for name, each in module.items()})
    for name, weights in module.items():
        np.testing.assert_allclose(weights.detach().numpy(), expected[name], atol=1e-6)
    rates = []
    for _ in range(60):  # the schedule is whole
        ours.step_schedules()
        rates.append(ours.learn_rate)
    assert rates == pytest.approx([*islice(warmup_linear(RATE, 50, 1000), 1, 61)])


@pytest.mark.parametrize(
    "schedule, by_hand",
    [
        (decaying(RATE, 0.1), None),
        (constant(RATE), None),
        (iter([RATE]), None),
        (warmup_linear(RATE, 50, 1000), 0.5),
    ],
)
def test_without_steps_rate_that_does_not_rise_or_is_set_by_hand_is_kept(
    schedule: Any, by_hand: float | None
) -> None:
    optimizer, weights = GroupedAdam(schedule), arrays(0, 4, 3)
    optimizer.learn_rate = by_hand or optimizer.learn_rate
    for step in range(3):
        optimizer((7, "x"), weights, arrays(step, 4, 3))
    assert optimizer.learn_rate == (by_hand or RATE)


# thinc's Adam, where no name is special


@pytest.mark.parametrize("name", ["W", "E", "projection.weight", "encoder.layer.1.output.weight"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"L2": DECAY},
        {"L2": DECAY, "L2_is_weight_decay": False},
        {"grad_clip": 0.0, "beta1": 0.5, "beta2": 0.7, "eps": 1e-3},
        {"beta1": 0.0, "beta2": 0.0},
    ],
)
def test_grouped_adam_matches_thinc_adam_bitwise(name: str, settings: dict[str, Any]) -> None:
    made = [
        make(warmup_linear(0.1, 2, 10), **settings)  # type: ignore[arg-type]
        for make in (GroupedAdam, Adam)
    ]
    ours, theirs = (run(optimizer, name, lr_scale=3.0) for optimizer in made)
    np.testing.assert_array_equal(ours, theirs)
    assert (ours != arrays(0, 4, 3)).all()
    keys = {key for optimizer in made for key in optimizer.averages}
    assert keys == {(7, name)}
    of_ours, of_theirs = (optimizer.averages[7, name] for optimizer in made)
    expected = of_theirs + share_of_the_first(made[1]) * arrays(0, 4, 3)
    np.testing.assert_allclose(of_ours, expected, atol=1e-6)


def share_of_the_first(optimizer: Optimizer) -> float:
    """The share of an average that is left of what it begins with: zero in thinc's Adam."""
    (steps,) = optimizer.nr_update.values()
    return float(np.prod([(1 + t) / (10 + t) for t in range(1, steps + 1)]))


@pytest.mark.parametrize("together", [False, True])
def test_averages_of_unchanged_weights_equal_weights(together: bool) -> None:
    """From the first step on: an evaluation there is of the pipeline that is trained further."""
    optimizer = GroupedAdam(0.0)
    weights = arrays(0, 4, 3)
    tensor = nn.Parameter(torch.from_numpy(weights.copy()))
    key = (7, "W")
    for _ in range(2):
        tensor.grad = torch.ones_like(tensor)
        if together:
            assert optimizer.update_together({key: tensor})
        else:
            optimizer(key, tensor.detach().numpy(), tensor.grad.numpy())
        average = torch.as_tensor(optimizer.averages[key])
        np.testing.assert_allclose(average.numpy(), weights, rtol=1e-6)
        assert average.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("name", ["W", "b"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"L2": DECAY},
        {"grad_clip": 0.0, "L2": DECAY, "use_averages": False},
        {"L2": DECAY, "beta1": 0.5, "beta2": 0.7, "eps": 1e-3},
    ],
)
def test_update_together_matches_thinc_adam(name: str, settings: dict[str, Any]) -> None:
    """Step by step; gradients that are clipped and that are not, and none; a rate of 0 first."""
    groups = NO_DECAY if name == "b" else None
    plain = settings | {"L2": 0.0} if name == "b" else settings
    theirs, ours = (
        Adam(warmup_linear(RATE, 2, 10), **plain),
        GroupedAdam(warmup_linear(RATE, 2, 10), **settings, groups=groups),
    )
    key, expected = (7, name), arrays(0, 40, 30)
    found = nn.Parameter(torch.from_numpy(expected.copy()))
    for step, size in enumerate((1.0, 1e-4, 10.0, 0.0, 1e-3, 1e-6)):
        gradient = size * arrays(1 + step, 40, 30)
        found.grad = torch.from_numpy(gradient.copy())
        theirs(key, expected, gradient)
        assert ours.update_together({key: found})
        assert ours.nr_update == theirs.nr_update
        np.testing.assert_allclose(found.detach(), expected, atol=1e-6, rtol=1e-6)
        np.testing.assert_allclose(ours.mom1[key], theirs.mom1[key], atol=1e-6, rtol=1e-6)
        np.testing.assert_allclose(ours.mom2[key], theirs.mom2[key], atol=1e-7, rtol=1e-6)
        if theirs.averages is not None:
            begun = share_of_the_first(theirs) * arrays(0, 40, 30)
            of_both = ours.averages[key], theirs.averages[key] + begun
            np.testing.assert_allclose(*of_both, atol=1e-6)
        for optimizer in (ours, theirs):
            optimizer.step_schedules()
    assert (ours.averages is None) == (theirs.averages is None)


def test_parameter_that_is_updated_together_at_times_matches_thinc_adam() -> None:
    """Here L2 is weight decay, or there is none, and the gradient has it."""
    L2 = [0.0, DECAY, 0.0, DECAY, 0.0]
    ours, theirs = (
        make([RATE] * 9, L2=iter(L2), L2_is_weight_decay=False) for make in (GroupedAdam, Adam)
    )
    shim = TorchShim(lambda: nn.Linear(5, 4, bias=False))
    shim.build_module()
    weights = shim.module.weight
    expected = weights.detach().numpy().copy()
    for step in range(4):
        gradient = arrays(step, 4, 5)
        weights.grad = torch.from_numpy(gradient.copy())
        theirs((7, "weight"), expected, gradient)
        shim.finish_update(ours)
        for optimizer in (ours, theirs):
            optimizer.step_schedules()
        np.testing.assert_allclose(weights.detach(), expected, rtol=1e-5, atol=1e-6)


def test_group_updates_keep_optimizer_l2() -> None:
    """Also with a schedule of L2, with a new learning rate, and after an error."""
    schedule: Any = iter([0.1, 0.2, 0.3])
    optimizer = GroupedAdam(RATE, L2=schedule, groups=NO_DECAY)
    assert not decays("b", optimizer) and optimizer.L2 == 0.1
    optimizer.step_schedules()
    assert not decays("b", optimizer) and optimizer.L2 == 0.2
    with pytest.raises(ValueError):
        optimizer((2, "b"), arrays(0, 3), arrays(0, 2))
    assert optimizer.L2 == 0.2
    optimizer.learn_rate = 0.5
    weights = np.ones((2, 2), dtype="f")
    optimizer((3, "W"), weights, np.zeros((2, 2), dtype="f"))
    np.testing.assert_allclose(weights, 1 - 0.5 * 0.2)


# Which weights decay


def test_no_decay_group_matches_biases_and_norms_of_thinc() -> None:
    norm = LayerNorm(nI=3)
    assert set(norm.param_names) == {"G", "b"}
    assert not any(decays(name) for name in norm.param_names)
    assert all(decays(name) for name in ("W", "E", "Q"))


def test_no_decay_group_matches_biases_and_crf_transitions() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC, "dense_width": 4}})
    nlp.initialize(lambda: make_examples(nlp))
    module = nlp.get_pipe("crf_ner").model.get_ref("output_layer").shims[0].module
    kept = {name for name, _ in module.named_parameters() if not decays(name)}
    biases = {name for name, p in module.named_parameters() if p.ndim == 1}
    assert kept == biases | {"crf.transitions"}
    assert {"crf.start_transitions", "encoder.rnn.bias_hh_l0_reverse", "dense.bias"} <= kept


@pytest.mark.slow
def test_no_decay_group_matches_biases_and_norms_of_hugging_face() -> None:
    """In them all, the weights with one axis are biases and layer norms."""
    more = {
        "xlnet": {f"layer.{i}.rel_attn.r_{x}_bias" for i in range(3) for x in "rsw"},
        "mpnet": {"encoder.relative_attention_bias.weight"},
    }
    for kind, module in small_transformers().items():
        kept = {name for name, _ in module.named_parameters() if not decays(name)}
        one_axis = {name for name, p in module.named_parameters() if p.ndim == 1}
        assert kept == one_axis | more.get(kind, set()), kind


# Groups


def test_factors_of_all_matching_groups_are_multiplied() -> None:
    groups = {
        "head": {"names": "projection|rnn", "learn_rate": 6.0, "L2": 0.5},
        "projection": {"names": "^projection", "learn_rate": 0.5, "grad_clip": 0.1},
        "unclipped": {"names": "^embeddings", "grad_clip": 0.0},
    }
    ours = GroupedAdam(RATE, L2=DECAY, use_averages=False, groups=groups)
    cases = [
        ("projection.weight", 3.0, 0.5, 0.1),
        ("encoder.rnn.weight_ih_l0", 6.0, 0.5, 1.0),
        ("embeddings.weight", 1.0, 1.0, 0.0),
    ]
    found = {name: arrays(0, 4, 3) for name, *_ in cases}
    for t in range(5):
        for name, weights in found.items():
            ours((7, name), weights, arrays(1 + t, 4, 3), lr_scale=2.0)
        ours.step_schedules()
    for name, rate, L2, clip in cases:
        theirs = Adam(RATE, L2=DECAY * L2, grad_clip=clip)
        expected = run(theirs, name, lr_scale=2.0 * rate)
        np.testing.assert_allclose(found[name], expected, atol=1e-6)


def test_update_together_matches_separate_updates() -> None:
    """With other factors, and one that has a gradient in fewer updates."""
    groups = {
        "fast": {"names": "^a", "learn_rate": 5.0},
        "no_decay": {"names": "b", "L2": 0.0},
        "clipped": {"names": "c$", "grad_clip": 0.1},
    }
    names = ["a", "ab", "bc", "c", "d", "e"]
    together, alone = (GroupedAdam(RATE, L2=DECAY, groups=groups) for _ in range(2))
    expected = {(7, name): arrays(i, 4, 3) for i, name in enumerate(names)}
    found = {key: nn.Parameter(torch.from_numpy(x.copy())) for key, x in expected.items()}
    for t in range(1, 4):
        learning = {key: found[key] for key in found if key[1] != "d" or t != 1}
        for i, key in enumerate(learning):
            gradient = arrays(10 * t + i, 4, 3)
            found[key].grad = torch.from_numpy(gradient.copy())
            alone(key, expected[key], gradient)
        assert together.update_together(learning)
    for key, weights in expected.items():
        np.testing.assert_allclose(found[key].detach(), weights, atol=1e-6, err_msg=key[1])
        np.testing.assert_allclose(together.averages[key], alone.averages[key], atol=1e-6)


def test_group_with_zero_learn_rate_keeps_weights() -> None:
    groups = {"frozen": {"names": "^embeddings", "learn_rate": 0.0}}
    optimizer, key = GroupedAdam(RATE, L2=DECAY, groups=groups), (7, "embeddings.weight")
    weights, gradient = arrays(0, 4, 3), arrays(1, 4, 3)
    optimizer(key, weights, gradient)
    np.testing.assert_array_equal(weights, arrays(0, 4, 3))
    assert not gradient.any()
    parameter = nn.Parameter(torch.from_numpy(weights.copy()))
    parameter.grad = torch.ones(4, 3)
    assert optimizer.update_together({key: parameter})
    np.testing.assert_array_equal(parameter.detach(), weights)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"names": "x", "learn_rate": None}, r"groups\.a: expected numbers or schedules"),
        ({}, r"groups\.a: expected names.*got no names"),
        ({"names": "x", "lr": 1}, r"groups\.a: expected names.*got also \['lr'\]"),
        (
            {"names": "layer.(0"},
            r"groups\.a\.names: expected a regular expression, got 'layer\.\(0'",
        ),
        ({"names": 3}, r"groups\.a\.names: expected a regular expression, got 3"),
        (
            {"names": "x", "learn_rate": -1},
            r"groups\.a\.learn_rate: expected a factor of 0 or more",
        ),
        ({"names": "x", "L2": -0.1}, r"groups\.a\.L2: expected a factor of 0 or more, got -0\.1"),
    ],
)
def test_group_with_invalid_settings_raises(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.resolve({"o": {"@optimizers": "spacy-crf-ner.Adam.v1", "groups": {"a": settings}}})


def test_group_without_parameters_warns_once() -> None:
    """A wrong pattern has no other visible effect."""
    groups = {"head": {"names": "projection"}, "rnn": {"names": "encoder.lstm", "learn_rate": 9.0}}
    optimizer = GroupedAdam(RATE, groups=groups)
    optimizer.step_schedules()  # nothing was updated yet, as when a training is resumed
    with pytest.warns(
        UserWarning, match=r"groups\.rnn: .* match 'encoder\.lstm', got none"
    ) as seen:
        run(optimizer, "projection.weight", steps=STEPS_TO_MATCH + 5)
    assert len(seen) == 1


def test_learn_rate_staying_at_zero_warns_once() -> None:
    """As when max_steps is raised, but not total_steps."""
    schedules = warmup_linear(RATE, 5, 9), constant_then(0.0, 19, constant(RATE))
    for schedule in schedules:
        run(GroupedAdam(schedule), "x", steps=9 + STEPS_AT_ZERO - 1)
    resumed = GroupedAdam(0.0)
    for _ in range(50):  # it repeats the steps before, without updates
        resumed.step_schedules()
    with pytest.warns(UserWarning, match="set its total_steps") as seen:
        run(GroupedAdam(warmup_linear(RATE, 5, 9)), "x", steps=9 + 2 * STEPS_AT_ZERO)
    assert len(seen) == 1


@pytest.mark.parametrize("config", ["transformer", "cnn", "char", "textcat_rnn"])
def test_groups_of_shipped_configs_match_parameters(config: str, tiny_transformer: str) -> None:
    nlp = spacy.util.load_model_from_config(
        load_config(
            ROOT / "configs" / f"{config}.cfg",
            overrides={"paths.transformer": tiny_transformer} if config == "transformer" else {},
        ),
        auto_fill=True,
        validate=True,
    )
    optimizer: Any = nlp.create_optimizer()
    categories = {"cats": {"A": 1.0, "B": 0.0}}
    examples = make_examples(nlp)
    for example in examples:
        example.reference.cats = categories["cats"]
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=optimizer)
    assert all(group.matched for group in optimizer.groups)
