"""Families of `nn.Module`s, one per file, each with its specs."""

from zoo.models.attention import CausalSelfAttention, FusedCausalSelfAttention
from zoo.models.autocast_regions import RegionMLP, squared_distances
from zoo.models.checkerboard import Checkerboard, checker, grid, scripted_checkerboard
from zoo.models.clipped_relu import Clip, ClippedReLU, clipped_layer
from zoo.models.conv_bn import ConvNorm, FusedConvNorm, ImageClassifier
from zoo.models.embedding import TiedBigram, TokenEmbedding, want_padding
from zoo.models.folded_conv_bn import ConvThenNorm, FoldedConvNorm, fold_conv_bn
from zoo.models.layer_norm import LayerNormByHand
from zoo.models.line import Affine, Line
from zoo.models.lstm_cell import LSTMCell, Recurrence
from zoo.models.merge import Merge, MergeTiled
from zoo.models.mlp import mlp
from zoo.models.quadratic import Quadratic
from zoo.models.resnet import BasicBlock, ResNet
from zoo.models.rms_norm import RMSNormByHand
from zoo.models.rotary import rotary_embedding
from zoo.models.seeded_dropout import SeededDropout, seeded_mask
from zoo.models.transformer import DecoderBlock, DecoderOnlyTransformer, GatedMLP

__all__ = [
    "Affine",
    "BasicBlock",
    "CausalSelfAttention",
    "Checkerboard",
    "Clip",
    "ClippedReLU",
    "ConvNorm",
    "ConvThenNorm",
    "DecoderBlock",
    "DecoderOnlyTransformer",
    "FoldedConvNorm",
    "FusedCausalSelfAttention",
    "FusedConvNorm",
    "GatedMLP",
    "ImageClassifier",
    "LSTMCell",
    "LayerNormByHand",
    "Line",
    "Merge",
    "MergeTiled",
    "Quadratic",
    "RMSNormByHand",
    "Recurrence",
    "RegionMLP",
    "ResNet",
    "SeededDropout",
    "TiedBigram",
    "TokenEmbedding",
    "checker",
    "clipped_layer",
    "fold_conv_bn",
    "grid",
    "mlp",
    "rotary_embedding",
    "scripted_checkerboard",
    "seeded_mask",
    "squared_distances",
    "want_padding",
]
