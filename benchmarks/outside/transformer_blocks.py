"""Small transformers: blocks of several families, and whole models with embeddings and heads."""

import torch
from spec_parts import hurried, normal, normals, tokens
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class PreNormBlock(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class GatedBlock(nn.Module):
    """RMS norm, causal attention, and a SiLU-gated feed-forward, all without biases."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RootMeanSquare(width), RootMeanSquare(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False)
        self.down = nn.Linear(24, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + self.out(y)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class TinyGpt(nn.Module):
    """Two blocks; the table of tokens is also the head."""

    def __init__(self, words: int = 13, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(12, width)
        self.blocks = nn.ModuleList([GatedBlock(width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Patches(nn.Module):
    """A vision transformer: patches by a convolution, a class token, one block."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.5)
        self.places = nn.Parameter(torch.randn(1, 5, width) * 0.5)
        self.block = PreNormBlock(width)
        self.head = nn.Linear(width, 7)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.block(x)[:, 0])


class Latents(nn.Module):
    """A few learned queries read a long input."""

    def __init__(self, width: int = 8, count: int = 3) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, width))
        self.kv = nn.Linear(6, 2 * width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 12), nn.GELU(approximate="tanh"))

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).chunk(2, dim=-1)
        weights = F.softmax(torch.einsum("ld,btd->blt", self.latents, k) * 8**-0.5, dim=-1)
        return self.mlp(torch.einsum("blt,btd->bld", weights, v))


class Mixer(nn.Module):
    """Mixes places, then channels."""

    def __init__(self, places: int = 6, width: int = 8) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 10), nn.GELU(), nn.Linear(10, places))
        self.within = nn.Sequential(nn.Linear(width, 10), nn.GELU(), nn.Linear(10, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.decoder(target, self.encoder(source), tgt_mask=mask)


def _without_dropout() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu"),
        2,
        enable_nested_tensor=False,
    ).eval()


PRE_NORM = hurried("pre_norm_block", "a pre-norm block", PreNormBlock, normal(2, 5, 16))
GATED_BLOCK = hurried("gated_block", "RMS norm and gated feed-forward", GatedBlock, normal(2, 5, 16))
GPT = hurried("tiny_gpt", "two blocks and a tied head", TinyGpt, tokens(13, 2, 6))
PATCHES = hurried("patches", "a vision transformer", Patches, normal(2, 3, 8, 8))
LATENTS = hurried("latents", "learned queries read an input", Latents, normal(2, 9, 6))
MIXER = hurried("mixer", "mixes places, then channels", Mixer, normal(3, 6, 8))
TRANSLATOR = hurried("encoder_decoder", "torch's own layers", EncoderDecoder, normals((2, 4, 8), (2, 5, 8)))
ENCODER = hurried("encoder_eval", "torch's encoder, in eval mode", _without_dropout, normal(2, 4, 8))
