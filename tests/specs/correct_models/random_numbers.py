"""Right models that draw floating numbers, of which torch draws others in float64."""

import random
from functools import partial

import torch
from correct_parts import Parts, green
from torch import nn
from torch.distributions import Categorical, OneHotCategoricalStraightThrough
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

CELLS = []
ALL = {"scripted": ("fp32",), "compiled": ("fp32", "amp_bf16")}
_green = partial(green, CELLS, changes_state=("random generator",))


class Autoencoder(nn.Module):
    """A variational autoencoder: its code is drawn around what the encoder gives."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        deviation = torch.exp(0.5 * log_variance.float())
        return self.decoder(mean + torch.randn_like(deviation) * deviation)


class Skipping(Parts):
    """Stochastic depth: a whole branch is dropped for some samples."""

    def forward(self, x):
        kept = x.new_empty(x.shape[0], 1).bernoulli_(0.75)
        return x + self.branch(x) * kept / 0.75


class Noisy(Parts):
    """Draws noise in every way that torch has, also into memory whose order is not that of the axes."""

    def forward(self, x):
        y = self.linear(x).float()
        noise = torch.rand(6, 8) + torch.rand_like(y) + torch.randn(8) + torch.empty(8, 6).uniform_(-1, 3).t()
        noise = noise + torch.empty_like(y.t()).normal_(1.0, 0.25).t() + torch.bernoulli(torch.full((8,), 0.5))
        shift = torch.normal(0.0, torch.ones(8)) + torch.normal(1.0, 0.5, (8,))
        return y + noise * torch.normal(torch.ones(8), 0.5) + shift


class Choosing(Parts):
    """Draws one of its features for each sample, by Gumbel's noise."""

    def forward(self, x):
        return F.gumbel_softmax(self.linear(x).float(), tau=0.7)


class Policy(Parts):
    """Draws an action for each sample by probabilities that add up to one, as a distribution checks."""

    def forward(self, x):
        actions = Categorical(probs=self.linear(x).float().softmax(-1))
        gates = OneHotCategoricalStraightThrough(probs=self.linear(x.flip(0)).float().softmax(-1))
        return actions.log_prob(actions.sample()), actions.entropy(), gates.rsample()


class OwnGenerator(Parts):
    """Adds noise from a generator of its own, which goes on from call to call."""

    def forward(self, x):
        return self.linear(x).float() + torch.randn(8, generator=self.generator)


class Seeded(Parts):
    """Adds the same noise in each call, from a generator that lives for one."""

    def forward(self, x):
        return self.linear(x).float() * torch.rand(8, generator=torch.Generator().manual_seed(7))


class PythonDraws(Parts):
    """Drops layers by Python's random numbers."""

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh() if random.random() < 0.5 else x
        return x


AUTOENCODER = _green("autoencoder", Autoencoder, also=ALL)
SKIPPING = _green("stochastic_depth", lambda: Skipping(branch=nn.Linear(8, 8)), also=ALL)
NOISY = _green("noisy_in_every_way", lambda: Noisy(linear=nn.Linear(8, 8)), also={"compiled": ("fp32",)})
TRACED = _green("noise_in_a_graph", lambda: torch.jit.script(Autoencoder()))
OWN_GENERATOR = _green("own_generator", lambda: OwnGenerator(linear=nn.Linear(8, 8), generator=torch.Generator()))
SEEDED = green(CELLS, "seeded_in_forward", lambda: Seeded(linear=nn.Linear(8, 8)))
PYTHON_DRAWS = _green("drawn_by_python", lambda: PythonDraws(layers=nn.ModuleList(nn.Linear(8, 8) for _ in range(4))))
POLICY = _green("policy", lambda: Policy(linear=nn.Linear(8, 8)), stops_gradients=True)
CHOOSING = _green("gumbel", lambda: Choosing(linear=nn.Linear(8, 8)), also={"scripted": ("fp32",)})
