"""What the zoo refuses beside wrong types and the error inputs of its specs: sizes, ranges, shapes and modes.

`test_bad_input.py` gives every public argument a wrong type, and `test_entries.py` draws every error input.
"""

import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from zoo.autograd_graph import draw_graph, write_graph
from zoo.data import ImageDirectoryDataset, ResizeCenterCrop
from zoo.data.pixels import decode_rgb
from zoo.functions.batch_norm2d import batch_norm2d, batch_norm2d_op
from zoo.functions.conv2d import conv2d, conv2d_op
from zoo.functions.fused_conv_bn2d import fused_conv_bn2d, fused_conv_bn2d_op
from zoo.functions.matmul_amp import matmul_amp, matmul_amp_op
from zoo.memory import forbid_saved_tensor_hooks, saved_bytes
from zoo.models.attention import CausalSelfAttention, FusedCausalSelfAttention
from zoo.models.checkerboard import checker, grid
from zoo.models.clipped_relu import ClippedReLU
from zoo.models.conv_bn import ConvNorm, FusedConvNorm, ImageClassifier
from zoo.models.embedding import TokenEmbedding
from zoo.models.folded_conv_bn import ConvThenNorm, FoldedConvNorm, fold_conv_bn
from zoo.models.layer_norm import LayerNormByHand
from zoo.models.line import Affine, Line
from zoo.models.lstm_cell import LSTMCell, Recurrence
from zoo.models.merge import Merge, MergeTiled
from zoo.models.quadratic import Quadratic
from zoo.models.resnet import BasicBlock, ResNet
from zoo.models.rms_norm import RMSNormByHand
from zoo.models.rotary import rotary_embedding
from zoo.models.seeded_dropout import SeededDropout, seeded_mask
from zoo.models.transformer import DecoderOnlyTransformer
from zoo.ops.batch_gather import batch_gather_loop, batch_gather_native, batch_gather_scripted, batch_gather_vectorised
from zoo.ops.broadcasting import sum_explicit
from zoo.ops.cross_entropy import softmax_cross_entropy
from zoo.ops.in_place import augment, augment_copy
from zoo.ops.operators import arithmetic
from zoo.ops.ratio import ratio_safe
from zoo.ops.row_sum import row_sum
from zoo.ops.softmax import softmax
from zoo.training import averaged, fit, fit_checkerboard, fit_line, run_segment, save_picture, share_of, squared_error

ATTENTIONS, PRODUCTS = (CausalSelfAttention, FusedCausalSelfAttention), (matmul_amp, matmul_amp_op)
GATHERS = (batch_gather_loop, batch_gather_scripted, batch_gather_vectorised, batch_gather_native)
FOLDS, FOLDER = (fold_conv_bn, ConvThenNorm, FoldedConvNorm), ImageDirectoryDataset
REFUSALS = (torch.jit.Error, RuntimeError)  # of a script: its own, and those of operators and Functions
LOGITS = TokenEmbedding(5, 3).logits
NO_IMAGES = ((4, 3, 8, 8), (1, 8, 8), (4, 1, 4, 8), (4, 1, 8, 4))
LINES, NORMS = (Affine, Line, Quadratic), (LayerNormByHand, RMSNormByHand)
MERGES = (Merge(5, 6, 10), MergeTiled(5, 6, 10))
IMAGE, WEIGHT = torch.ones(2, 3, 5, 5), torch.ones(4, 3, 3, 3)
BATCH_NORMS, FUSED = (batch_norm2d, batch_norm2d_op), (fused_conv_bn2d, fused_conv_bn2d_op)
FUNCTIONS, OPERATORS = (conv2d, fused_conv_bn2d), (conv2d_op, fused_conv_bn2d_op)
FILTERS = "weight must have shape (filters, 3, rows, columns), got "
CLASSIFIERS = tuple(ImageClassifier(layer) for layer in (ConvNorm, FusedConvNorm))
NAN = float("nan")
X, HALF, LONG, META = torch.ones(2, 3), torch.ones(2, 3).half(), torch.ones(2, 3).long(), torch.ones(2, device="meta")
WHOLE, TRUTHS, LEAF = torch.arange(3), torch.tensor([True, False]), torch.ones(4, 4, requires_grad=True)
CONV, SETTLED, NET = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8).eval(), nn.Linear(3, 1)
UNTRACKED, OTHER = nn.BatchNorm2d(8, track_running_stats=False).eval(), nn.BatchNorm2d(4).eval()
FIT = partial(fit, NET, squared_error, (X, X[:, :1]), SGD(NET.parameters(), lr=0.1))
SHARE = partial(share_of, TensorDataset(torch.ones(24)))
STATE = (torch.ones(3, 6), torch.ones(3, 6))
SPARSE = (lambda x: torch.sparse.mm(x.to_sparse(), x), LEAF)

REFUSED = (  # what is called, its arguments, the error, and how its line goes on after the name
    *((b, (16, 3), ValueError, "num_heads must divide embed_dim, got 3 and 16") for b in ATTENTIONS),
    *((b, (16, 0), ValueError, "num_heads must be at least 1, got 0") for b in ATTENTIONS),
    *((partial(b, rotary=True), (6, 2), ValueError, "rotary needs an even number of features") for b in ATTENTIONS),
    (DecoderOnlyTransformer, (13, 16, 2, 0, 24), ValueError, "num_layers must be at least 1, got 0"),
    (TokenEmbedding, (5, 0), ValueError, "embedding_dim must be at least 1, got 0"),
    *((TokenEmbedding, (5, 4, i), ValueError, f"padding_idx must lie in [0, 5), got {i}") for i in (-1, 5)),
    (LOGITS, (None,), TypeError, "h must be a tensor, got None"),
    (LOGITS, (LONG,), TypeError, "h must have a floating dtype, got torch.int64"),
    (LOGITS, (X[:, :2],), ValueError, "h must have trailing size 3, got shape [2, 2]"),
    *((b, (4, e), ValueError, f"eps must be a positive float, got {e}") for b in NORMS for e in (0.0, -1.0, NAN)),
    (LSTMCell(4, 6), (torch.ones(3, 4), (STATE[0], None)), TypeError, "c must be a tensor, got None"),
    (LSTMCell(4, 6), (torch.ones(3, 4), STATE[0]), TypeError, "state must be a pair of tensors, got Tensor"),
    (grid, (0, 4), ValueError, "width must be at least 1, got 0"),
    (checker, (4, 4, 2.0), TypeError, "freq must be an integer, got float"),
    *(
        (c, (torch.ones(s),), ValueError, "images must have shape (batch, 1, h, w) with h ")
        for c in CLASSIFIERS
        for s in NO_IMAGES
    ),
    *((c, (torch.ones(4, 1, 8, 8).long(),), TypeError, "images must have a floating dtype, got") for c in CLASSIFIERS),
    (fold_conv_bn, (CONV, nn.BatchNorm2d(8)), ValueError, "norm must be in eval mode, got training mode"),
    (fold_conv_bn, (CONV, UNTRACKED), ValueError, "norm must have running statistics"),
    (fold_conv_bn, (nn.Linear(4, 8), SETTLED), TypeError, "conv must be a Conv2d, got Linear"),
    (fold_conv_bn, (nn.ConvTranspose2d(4, 8, 3), SETTLED), TypeError, "conv must be a Conv2d, got ConvTranspose2d"),
    (fold_conv_bn, (CONV, nn.LayerNorm(8)), TypeError, "norm must be a BatchNorm2d, got LayerNorm"),
    *((f, (CONV, OTHER), ValueError, "norm must have the 8 channels that conv returns, got 4") for f in FOLDS),
    *(
        (ResNet, (3, w), TypeError, f"widths must be a list or tuple, got {c}")
        for w, c in ((16, "int"), (None, "None"))
    ),
    (ResNet, (3, ()), ValueError, "widths must not be empty"),
    (ResNet, (3, (16, 0)), ValueError, "widths[1] must be at least 1, got 0"),
    (BasicBlock, (16, 16, 0), ValueError, "stride must be at least 1, got 0"),
    *((ClippedReLU, (v,), ValueError, f"limit must be positive, got {v}") for v in (0.0, -1.0, NAN)),
    *((ClippedReLU, (2.0, v), ValueError, f"leak must lie in [0, 1], got {v}") for v in (-0.1, 1.5, NAN)),
    (seeded_mask, (X, torch.tensor(1), 2.0), ValueError, "p must lie in [0, 1], got 2.0"),
    (SeededDropout, (-0.1,), ValueError, "p must lie in [0, 1], got -0.1"),
    (Merge, (5, 6, 10, "relu"), TypeError, "activation must be a module, its class, a function or None, got str"),
    *((f, (X, torch.tensor(0)), ValueError, "index must have shape (B, ...) with B = 2, got []") for f in GATHERS),
    *((f, (X[:, :0], LONG), IndexError, "index must lie in [0, 0)") for f in GATHERS),
    (row_sum, (LONG,), TypeError, "x must have a floating dtype, got torch.int64"),
    (softmax, (WHOLE,), TypeError, "x must have a floating dtype, got torch.int64"),
    (softmax_cross_entropy, (X, LONG), TypeError, "labels must have a floating dtype, got torch.int64"),
    (softmax_cross_entropy, (X, X.to("meta")), ValueError, "labels must be on the device of logits, cpu, got meta"),
    (arithmetic, (X, X), ValueError, "x must have shape (n, n), got [2, 3]"),
    (ratio_safe, (X, HALF, 1.0), TypeError, "y must have the dtype of x, torch.float32, got torch.float16"),
    *((f, (IMAGE, e), ValueError, f"eps must be positive, got {e}") for f in BATCH_NORMS for e in (0.0, -1.0, NAN)),
    *((f, (IMAGE, WEIGHT, e), ValueError, f"eps must be positive, got {e}") for f in FUSED for e in (0.0, -1.0, NAN)),
    *((f, (IMAGE, WEIGHT.double()), TypeError, "weight must have the dtype of x, torch.float32, ") for f in FUNCTIONS),
    *((f, (IMAGE, WEIGHT.long()), TypeError, "weight must have a floating dtype, got torch.int64") for f in FUNCTIONS),
    *((f, (IMAGE, w), ValueError, FILTERS) for f in FUNCTIONS for w in (WEIGHT[0], WEIGHT[:0])),
    *((f, (X, X.t().long()), TypeError, "b must have a floating dtype, got torch.int64") for f in PRODUCTS),
    (matmul_amp, (X, X.t().half()), TypeError, "b must have the dtype of a, torch.float32, outside autocast"),
    (draw_graph, (1.0,), TypeError, "output must hold a tensor, got float"),
    (draw_graph, (LEAF, {"x": 3}), TypeError, "params['x'] must be a tensor, got int"),
    (draw_graph, (LEAF, [LEAF]), TypeError, "params must map names to tensors, got list"),
    (draw_graph, (LEAF, {1: LEAF}), TypeError, "the keys of params must be names, got int"),
    (write_graph, ("graph.png", LEAF), ValueError, "path must end in '.svg', got 'graph.png'"),
    (forbid_saved_tensor_hooks, ("",), ValueError, "message must"),
    (saved_bytes, SPARSE, TypeError, "every saved tensor must have a storage, got layout torch.sparse_coo"),
    *((decode_rgb, (v, "x"), TypeError, "data must be bytes, got ") for v in (None, [1, 2], "photo.png")),
    *((FOLDER, (".", p), ValueError, f"pattern must be relative to the folder, got {p!r}") for p in ("", "/*.png")),
    (ResizeCenterCrop, (0, 2), ValueError, "height must be at least 1, got 0"),
    (ResizeCenterCrop(2, 2), (LONG[None],), TypeError, "image must be uint8 or floating, got torch.int64"),
    *((ResizeCenterCrop(2, 2), (x,), ValueError, "image must have shape (channels, rows, ") for x in (X, X[None, :0])),
    (partial(SHARE, rank=0, world_size=2), (0,), ValueError, "batch_size must be at least 1, got 0"),
    (partial(SHARE, rank=2, world_size=2), (6,), ValueError, "rank must be at least 0 and below 2, got 2"),
    (
        partial(SHARE, rank=0, world_size=99),
        (6,),
        ValueError,
        "dataset must have a sample for each of 99 ranks, got 24",
    ),
    (partial(FIT, steps=0), (), ValueError, "steps must be at least 1, got 0"),
    (partial(fit_line, steps=0), (Affine(),), ValueError, "steps must be at least 1, got 0"),
    (partial(fit_checkerboard, steps=0), (NET,), ValueError, "steps must be at least 1, got 0"),
    (fit_checkerboard, ([],), TypeError, "model must be a Module, got list"),
    (save_picture, ("board.png", [[0.0]]), TypeError, "board 1 must be a tensor, got list"),
    (partial(run_segment, owner=[]), (torch.sin, torch.ones(1)), TypeError, "owner must be a Module, got list"),
    (averaged, ([1], 0.5), TypeError, "model must be a Module, got list"),
    *((averaged, (NET, v), ValueError, f"decay must be at least 0 and below 1, got {v}") for v in (1.0, -0.1)),
)
IN_BOTH = (  # a model, its inputs, the error in eager, and how its line goes on in eager and in a script
    (CausalSelfAttention(16, 2), (torch.ones(2, 5, 8),), ValueError, "x must have shape (batch, tokens, 16), got "),
    *((TokenEmbedding(5, 4), (i,), TypeError, "ids must have dtype int64, got ") for i in (WHOLE.int(), TRUTHS)),
    (TokenEmbedding(5, 4), (torch.tensor([0, -1]),), IndexError, "ids must lie in [0, 5), the rows of the table"),
    *((b(8), (torch.ones(2, 1),), ValueError, "x must have trailing size 8, got shape [2, 1]") for b in NORMS),
    *((b(8), (torch.tensor(1.0),), ValueError, "x must have trailing size 8, got shape []") for b in NORMS),
    (rotary_embedding, (torch.ones(4),), ValueError, "x must have shape "),
    (rotary_embedding, (torch.ones(2, 4), -1.0), ValueError, "base must be positive, got -1"),
    (rotary_embedding, (torch.ones(2, 4).long(),), TypeError, "x must have a floating dtype, got "),
    (Recurrence(LSTMCell(4, 6)), (torch.ones(3, 4), *STATE), ValueError, "x must have shape "),
    (FoldedConvNorm(CONV, nn.BatchNorm2d(8)), (torch.ones(1, 4, 5, 5),), ValueError, "norm must be in eval mode, got "),
    *((ResNet(), (torch.ones(s),), ValueError, "images must have shape ") for s in ((3, 8, 8), (2, 3, 0, 8))),
    *((m, (torch.ones(2, 5).long(), torch.ones(2, 6)), TypeError, "x1 and x2 must have a floating ") for m in MERGES),
    *((m, (torch.ones(2, 5), torch.ones(2, 6).long()), TypeError, "x1 and x2 must have a floating ") for m in MERGES),
    *((b(), (torch.ones(2, 1),), ValueError, "x must have shape (n,), got [2, 1]") for b in LINES),
    *((b(), (torch.tensor(1.0),), ValueError, "x must have shape (n,), got []") for b in LINES),
    *((b(), (WHOLE,), TypeError, "x must have a floating dtype, got ") for b in LINES),
    *((b(), (META,), ValueError, "x must be on cpu, where the ") for b in LINES),
    (ClippedReLU(), (WHOLE,), TypeError, "x must have a floating dtype, got "),
    (sum_explicit, (torch.tensor(1.0), torch.tensor(1.0), 0), IndexError, "dim must name one of 0 axes, got 0"),
    (sum_explicit, (torch.ones(2), TRUTHS, 0), TypeError, "b must have a floating dtype"),
    *((f, (IMAGE, WEIGHT.long()), TypeError, "weight must have a floating dtype, got ") for f in OPERATORS),
    *((f, (IMAGE, w), ValueError, FILTERS) for f in OPERATORS for w in (WEIGHT[0], WEIGHT[:0])),
    *((f, (X, X.double()), TypeError, "x and y must have one floating dtype, got ") for f in (augment, augment_copy)),
)


def name_of(called):
    """The name of a function, a class, or an instance's class."""
    function = getattr(called, "func", called)
    return getattr(function, "__name__", type(function).__name__)


def ids(rows):
    return [f"{name_of(called)}: {line}" for called, _, _, line in rows]


@pytest.mark.parametrize(("called", "arguments", "error", "line"), REFUSED, ids=ids(REFUSED))
def test_it_is_refused_in_one_line(called, arguments, error, line):
    with pytest.raises(error, match=f"{name_of(called)}: {re.escape(line)}") as caught:
        called(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize(("model", "inputs", "error", "line"), IN_BOTH, ids=ids(IN_BOTH))
def test_it_is_refused_in_eager_and_in_a_script(model, inputs, error, line, scripted):
    called = torch.jit.script(model) if scripted else model
    with pytest.raises(REFUSALS if scripted else error, match=f"{name_of(model)}: {re.escape(line)}"):
        called(*inputs)
