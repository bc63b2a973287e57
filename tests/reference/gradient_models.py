"""Small models, one for each thing that per-sample gradients can stumble over."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_SAMPLES = 5
N_CLASSES = 3


class Residual(nn.Module):
    """A block in the manner of ResNet; in-place ReLUs, one module for both of them."""

    def __init__(self, n_in: int, n_out: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm1 = norm(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm2 = norm(n_out)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class ConvNext(nn.Module):
    """Depthwise convolution, LayerNorm over the last dimension, layer scale."""

    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Attention(nn.Module):
    """Attention with one hand-written projection."""

    def __init__(self, width: int):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class TorchAttention(nn.Module):
    """Self-attention by torch's own module, with and without its weights."""

    def __init__(self, width: int, batch_first: bool = True, bias: bool = True):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, bias=bias, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        if self.inner.batch_first:
            return self.inner(x, x, x, need_weights=False)[0]
        x = x.transpose(0, 1)
        y, weights = self.inner(x, x, x)
        return (y * weights.sum(2).T[..., None].cos()).transpose(0, 1)


class Crossing(nn.Module):
    """Attention between different tensors, and with a mask."""

    def __init__(self, width: int):
        super().__init__()
        self.cross = nn.MultiheadAttention(width, 2, batch_first=True)
        self.masked = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cross(x, x.flip(1), x, need_weights=False)[0]
        # The first token, which the head reads, sees three: alone it would have nothing to choose
        # from, and the gradients of its query and key would be nothing but rounding errors.
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(3)
        return y + self.masked(x, x, x, attn_mask=mask, need_weights=False)[0]


class PackedAttention(nn.MultiheadAttention):
    """Self-attention with torch's packed projection, behind a `forward` of its own."""

    def __init__(self, width: int):
        super().__init__(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x, need_weights=False)[0]


class VisionTransformer(nn.Module):
    def __init__(self, attention: Callable[[int], nn.Module]):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(8), attention(8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = x + self.attention(self.norm1(x))
        return self.head((x + self.mlp(self.norm2(x)))[:, 0])


class Scaled(nn.Module):
    """Parameters outside of layers: in front of the rows, behind them, one number, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, N_CLASSES)
        self.by_channel = nn.Parameter(torch.rand(4, 1, 1))
        self.by_pixel = nn.Parameter(torch.rand(1, 1, 6, 6))
        self.last = nn.Parameter(torch.rand(4))
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.temperatures = nn.ParameterList([torch.rand(4), torch.rand(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x) * self.by_channel + self.by_pixel * self.by_channel)
        for scale in self.temperatures:
            x = x + torch.tanh(x.permute(0, 2, 3, 1) * scale).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)) * self.last) / self.temperature


class TiedDecoder(nn.Module):
    """One tensor as the weight of two layers, and again outside of any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 12), nn.Linear(12, 12)
        self.decoder.weight = self.encoder.weight
        self.code, self.head = nn.Linear(12, 4), nn.Linear(12, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.decoder(torch.tanh(self.encoder(x.mean(3).flatten(1)[:, :12])))
        return self.head(F.linear(torch.tanh(self.code(x)), self.code.weight.T))


class AppliedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.conv(self.stem(x))))
        return self.head(torch.tanh(self.norm(self.conv(input=x))).mean((2, 3)))


class TwoNames(nn.Module):
    """One module known by two names, with a parameter that no rule covers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = ConvNext(3)
        self.head = nn.Linear(3, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)).mean((2, 3)))


class Words(nn.Module):
    def __init__(self, by_frequency: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6, padding_idx=0, scale_grad_by_freq=by_frequency)
        self.head = nn.Linear(6, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = (x[:, 0, 0].abs() * 5).long() % 9
        return self.head(torch.tanh(self.embedding(words)).mean(1))


class SequenceFirst(nn.Module):
    """Layers whose first dimension is not the samples, in one case just as long by chance."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length
        self.norm, self.mix = nn.LayerNorm(4), nn.Linear(4, 4)
        self.head = nn.Linear(4, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, 0].flatten(1)[:, : 4 * self.length].unflatten(1, (self.length, 4))
        return self.head(torch.tanh(self.mix(self.norm(x.transpose(0, 1)))).mean(0))


class Shifted(nn.Linear):
    """A subclass that keeps the name of its weight but not what is done with it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.abs() + 1, self.bias)


class Cubed(nn.Conv2d):
    """A convolution that changes its weight below `forward`."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight**3, bias)


class Unused(nn.Module):
    """A parameter nobody uses, a layer never called, and one whose output is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.ones(2))
        self.spare, self.ignored = nn.Linear(4, 4), nn.Conv2d(3, 2, 3)
        self.norm, self.head = nn.LayerNorm(3), nn.Linear(3, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.ignored(x)
        return self.head(self.norm(x.mean((2, 3))))


def dead_unit() -> nn.Module:
    model = mlp()
    with torch.no_grad():
        model[1].bias[2] = -1e3
    return model


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)
    )


def pooled(*layers: nn.Module, width: int, axes: int = 2) -> nn.Sequential:
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[axes - 1](2)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(2**axes * width, N_CLASSES))


def residual(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    stem = (nn.Conv2d(3, 4, 3, padding=1, bias=False), norm(4), nn.ReLU(inplace=True))
    return pooled(*stem, Residual(4, 8, 2, norm), Residual(8, 8, 1, norm), width=8)


def normalized_instances() -> nn.Sequential:
    # Without a bias: the gradient of one in front of InstanceNorm is nothing but rounding error.
    conv, plain = nn.Conv2d(3, 4, 3, bias=False), nn.InstanceNorm2d(4, affine=True)
    tracked = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return pooled(conv, plain, nn.Tanh(), tracked, width=4)


def convolutions() -> nn.Sequential:
    """Strides, dilations, odd paddings, a window larger than its padded input's rest."""
    layers = (
        nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        nn.Tanh(),
        nn.Conv2d(4, 6, 4, padding="same"),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, padding=(1, 2), padding_mode="circular", groups=2),
        nn.Tanh(),
        nn.Conv2d(6, 4, 3, padding="valid", dilation=1, stride=1),
        nn.Tanh(),
        nn.Conv2d(4, 8, 5, padding=4, stride=3),
    )
    return pooled(*layers, width=8)


def signals(axes: int) -> nn.Sequential:
    shape, conv = ((3, 64), nn.Conv1d) if axes == 1 else ((3, 4, 4, 4), nn.Conv3d)
    norm = nn.BatchNorm1d if axes == 1 else nn.BatchNorm3d
    first, second = conv(3, 4, 3, stride=2, padding=1), conv(4, 4, 3, padding=2, groups=2)
    layers = (nn.Flatten(), nn.Unflatten(1, shape), first, norm(4), nn.Tanh(), second)
    return pooled(*layers, width=4, axes=axes)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: residual(nn.BatchNorm2d),
    "group norm": lambda: residual(lambda width: nn.GroupNorm(2, width)),
    "instance norm": normalized_instances,
    "depthwise, layer norm": lambda: pooled(nn.Conv2d(3, 6, 2, 2), ConvNext(6), width=6),
    "grouped": lambda: pooled(
        nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 12, 3, groups=4, padding=1), width=12
    ),
    "convolutions": convolutions,
    "wide at few positions": lambda: pooled(
        nn.Conv2d(3, 32, 3, 4), nn.Tanh(), nn.Conv2d(32, 40, 3, padding=1, groups=2), width=40
    ),
    "conv1d": lambda: signals(1),
    "conv3d": lambda: signals(3),
    "vit": lambda: VisionTransformer(Attention),
    "vit, torch's attention": lambda: VisionTransformer(TorchAttention),
    "vit, attention by sequence": lambda: VisionTransformer(
        lambda width: TorchAttention(width, batch_first=False, bias=False)
    ),
    "vit, crossing attention": lambda: VisionTransformer(Crossing),
    "vit, packed attention": lambda: VisionTransformer(PackedAttention),
    "scales": lambda: Scaled(),
    "encoder layer": lambda: nn.Sequential(
        nn.Flatten(2), nn.TransformerEncoderLayer(64, 2, 8, 0.0, batch_first=True),
        nn.Flatten(), nn.Linear(192, N_CLASSES),
    ),
    "rms norm": lambda: nn.Sequential(nn.RMSNorm((8, 8)), nn.Flatten(), nn.Linear(192, N_CLASSES)),
    "tied": TiedDecoder,
    "applied twice": AppliedTwice,
    "two names": TwoNames,
    "words": lambda: Words(False),
    "words, by frequency": lambda: Words(True),
    "sequence first": lambda: SequenceFirst(2 * N_SAMPLES),
    "sequence first, of three": lambda: SequenceFirst(3),
    "subclass": lambda: nn.Sequential(nn.Flatten(), Shifted(192, 4), nn.Tanh(), nn.Linear(4, 3)),
    "cubed": lambda: pooled(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), Cubed(4, 4, 3), nn.Tanh(), width=4
    ),
    "parametrized": lambda: nn.Sequential(
        nn.Flatten(),
        nn.utils.parametrizations.weight_norm(nn.Linear(192, 4)),
        nn.PReLU(4),
        nn.Linear(4, N_CLASSES),
    ),
    "mlp": mlp,
    "unused": Unused,
    "dead unit": dead_unit,
}  # fmt: skip


def make_model(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return a model in evaluation mode with running statistics and affine weights of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        model = MODELS[name]()
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.dim() == 1 and tensor.is_floating_point() and tensor.abs().max() < 100:
                tensor.detach().copy_(tensor + 0.3 * torch.rand_like(tensor))
    return model.to(dtype).eval()


def make_samples(dtype: torch.dtype = torch.float64, n: int = N_SAMPLES) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(0, N_CLASSES, (n,), generator=generator)
    return x.to(dtype), (0.7 * x.flip(1) + 0.3 * noise).to(dtype), y
