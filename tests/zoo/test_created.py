"""What `create_model` gives: nothing that another model holds, and one clear line for what an entry does not take."""

import functools
import inspect
import operator
import re
import types

import pytest
import torch
from torch import nn

import zoo
from zoo.models import Merge

NAMES = [*zoo.list_models(), *zoo.list_models(module="counterexamples")]
OWN = (nn.Module, torch.Tensor, torch.Generator, list, dict, set)  # what no two models may share
OF_CREATE = ("seed", "device")
PARTS = (  # what a thing of a kind consists of; the first kind that fits counts
    (torch.Tensor, lambda _: ()),
    (torch.jit.ScriptModule, lambda m: (*m.modules(), *m.parameters(), *m.buffers())),  # the rest is torch's own
    (dict, dict.values),
    ((list, tuple, set, frozenset), iter),
    (functools.partial, lambda p: (p.func, *p.args, *p.keywords.values())),
    (
        types.FunctionType,
        lambda f: (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values(), *map(content, f.__closure__ or ())),
    ),
    ((type, types.ModuleType), lambda _: ()),
    (object, lambda thing: getattr(thing, "__dict__", {}).values()),
)
content = operator.attrgetter("cell_contents")


def held(thing, found=None, seen=None):
    """Everything of `OWN` that a model reaches, by its identity; a tensor also by its memory."""
    found, seen = ({}, {}) if found is None else (found, seen)
    if id(thing) not in seen:
        seen[id(thing)] = thing
        if isinstance(thing, OWN):
            found[id(thing)] = thing
        if isinstance(thing, torch.Tensor) and thing.numel():
            found[thing.untyped_storage().data_ptr()] = thing
        for part in next(parts for kind, parts in PARTS if isinstance(thing, kind))(thing):
            held(part, found, seen)
    return found


def shared(make):
    one, other = make(), make()
    mine, theirs = held(one), held(other)
    return [type(mine[key]).__name__ for key in mine.keys() & theirs.keys()]


def arguments_of(name):
    """The arguments that an entry takes by name, with their values."""
    places = inspect.signature(zoo.get_spec(name).build).parameters.values()
    return {p.name: p.default for p in places if p.default is not p.empty and p.name not in OF_CREATE}


@pytest.mark.parametrize("name", NAMES)
def test_no_two_models_of_an_entry_share_anything(name):
    for given in ({}, arguments_of(name)):
        assert shared(lambda: zoo.create_model(name, **given)) == []  # noqa: B023 -- called at once
    assert shared(zoo.get_spec(name).build) == []
    if zoo.get_spec(name).scale:
        assert shared(lambda: zoo.get_spec(name).scale.build(8)) == []


def test_what_two_models_share_is_found():
    relu, weights, generator, rows = nn.ReLU(), torch.ones(4), torch.Generator(), [1]

    def drawing(x, *, generator=generator):
        return x, rows

    assert "ReLU" in shared(lambda: nn.Sequential(relu))
    assert "ReLU" in shared(lambda: Merge(2, 2, 2, relu))
    assert shared(lambda: nn.Parameter(weights[1:])) == ["Parameter"]  # one memory
    assert {"Generator", "list"} <= set(shared(lambda: drawing))
    assert shared(lambda: Merge(2, 2, 2, nn.ReLU)) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_that_lacks_an_argument_says_which_it_takes(name):
    takes = ", ".join(inspect.signature(zoo.get_spec(name).build).parameters) or "no arguments: those of a call go to"
    with pytest.raises(TypeError) as raised:
        zoo.create_model(name, nonsense=1)
    line = f"create_model: {name} has no argument 'nonsense'; it takes {takes}"
    assert str(raised.value).startswith(line)


def test_every_argument_that_an_entry_has_can_be_given_by_name():
    for name in ("transformer", "transformer_fused"):
        assert zoo.create_model(name, vocab_size=5, padding_idx=None).embedding.num_embeddings == 5
    for name, owner in (("embedding", ""), ("tied_embedding", "embedding.")):
        assert zoo.create_model(name, num_embeddings=5).get_parameter(f"{owner}weight").shape == (5, 6)
    for name, layer in (("lstm_cell_native", "LSTMCell"), ("folded_conv_bn", "FoldedConvNorm")):
        argument = next(iter(arguments_of(name)))
        with pytest.raises(ValueError, match=f"^{layer}: {argument} must be at least 1, got 0$"):
            zoo.create_model(name, **{argument: 0})


def bad_calls(args):
    """Each call that has an argument too many, or a value of a wrong kind in the place of a tensor."""
    yield args, {"nonsense": 1}
    yield (*args, *args), {}
    yield (), {}
    for place, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            other = torch.float32 if value.dtype == torch.int64 else torch.int64
            for bad in ([1.0], None, "text", value.to(other), value.new_ones(())):
                yield (*args[:place], bad, *args[place + 1 :]), {}


@pytest.mark.parametrize("name", zoo.list_models())
def test_a_call_with_something_wrong_ends_in_one_line_or_works(name):
    """No error comes from inside: of a function that nobody knows, of an attribute, or of an assertion."""
    model, args = zoo.create_model(name, seed=0), zoo.example_inputs(name)
    if isinstance(model, torch.jit.ScriptModule):
        pytest.skip("TorchScript words the errors of a ScriptModule")
    complaints = []
    for bad, words in bad_calls(args):
        no_tensor = any(value is None or isinstance(value, (list, str)) for value in bad)
        try:
            model(*bad, **words)
        except (TypeError, ValueError, IndexError, RuntimeError) as problem:
            inside = re.search(r"\n|<lambda>|\b_[a-z]\w*\(\)|INTERNAL ASSERT", str(problem))
            complaints += [problem] * bool(inside or ((no_tensor or words) and not isinstance(problem, TypeError)))
        else:
            complaints += [f"accepted: {bad}, {words}"] * bool(no_tensor or words)
    assert complaints == []


@pytest.mark.parametrize("name", zoo.list_models("batch_gather*"))
def test_an_index_out_of_range_is_an_index_error_that_names_the_entry(name):
    with pytest.raises(IndexError, match=rf"^{name}: index must lie in \[0, 3\), the rows of tensor$"):
        zoo.create_model(name)(torch.ones(2, 3), torch.tensor([[3], [0]]))


@pytest.mark.parametrize("name", zoo.list_models(["*batch_norm2d*", "fused_conv_bn2d*"]))
def test_an_integer_is_not_taken_for_eps(name):
    model, args = zoo.create_model(name), zoo.example_inputs(name)
    with pytest.raises(TypeError, match=f"^{name}: eps must be a float, got int 2$"):
        model(*args, 2)
    assert model(*args, 2.0).isfinite().all()


def test_a_trainer_names_the_inputs_that_it_wants():
    trainer, (x, y) = zoo.create_model("train_step", seed=0), zoo.example_inputs("train_step")
    for given in ((), (x,), (x, y, y)):
        with pytest.raises(TypeError, match=f"^Trainer: inputs must be x, y, got {len(given)} of them$"):
            trainer(*given)
    with pytest.raises(TypeError, match=r"^Trainer: y must be a tensor, got list$"):
        trainer(x, y.tolist())
    assert zoo.Trainer(nn.Linear(1, 1), lambda *given: given)(x)[3] is x
    assert zoo.Trainer(nn.Linear(1, 1), lambda _call, _model, _precision, rows, by=2: (rows, by))([1]) == ([1], 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_that_begins_with_code_quotes_it(name):
    """A page begins a sentence with the summary, and must not make "Matmul_amp" of a name."""
    word = re.split(r"[ ,]", zoo.get_spec(name).summary)[0]
    assert word.startswith("`") or re.fullmatch(r"\d\w*|[A-Za-z]+(-[a-z]+)?", word)
    assert word not in zoo.list_models(module="functions")
