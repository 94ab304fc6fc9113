"""Small models of the kinds that people train."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # its usual name
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, LENGTH, WIDTH, HEADS = 13, 6, 8, 2


class Mlp(nn.Module):
    """Two layers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.fc2, self.drop = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(torch.tanh(self.fc1(x))))


class GptBlock(nn.Module):
    """Fused projection, causal attention, tanh GELU."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + self.drop(self.proj(y.transpose(1, 2).contiguous().view(b, t, WIDTH)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """GPT-2: learned positions, tied head."""

    def __init__(self, dropout: float = 0.0, *, checkpointed: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(GptBlock(dropout) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight
        self.checkpointed = checkpointed

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.ln(x))


class RmsNorm(nn.Module):
    """Root mean square norm, computed in float32 as Llama does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to halves."""
    one, other = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-other, one), dim=-1) * sin


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = 4, 2, WIDTH // 4
        self.norm1, self.norm2 = RmsNorm(), RmsNorm()
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * self.size, bias=False)
        self.v, self.o = nn.Linear(WIDTH, 2 * self.size, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*size, bias=False) for size in ((WIDTH, 12), (WIDTH, 12), (12, WIDTH)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = (part(y).view(b, t, self.kv_heads, self.size).transpose(1, 2) for part in (self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (part[:, :, None].expand(b, self.kv_heads, 2, t, self.size).reshape(b, self.heads, t, self.size) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + self.o(y)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Llama: rotary angles in a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), RmsNorm()
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, 2, 2).float() / 2)), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        position = torch.arange(ids.shape[1], device=ids.device)
        angles = torch.outer(position.float(), self.inv_freq.float())
        angles = torch.cat((angles, angles), dim=-1)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        return self.head(self.norm(x))


class Bert(nn.Module):
    """BERT: token types, an additive mask, erf GELU, masked-language head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0), nn.Embedding(LENGTH, WIDTH)
        self.types, self.ln = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.ln1, self.ln2, self.up, self.down = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.transform, self.ln3, self.bias = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(VOCABULARY))
        self.pooler = nn.Linear(WIDTH, WIDTH)  # unused by this loss

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor | None) -> Tensor:
        b, t = ids.shape
        x = self.ln(self.words(ids) + self.types(types) + self.positions(torch.arange(t))[None])
        bias = None if mask is None else (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        q, k, v = (part(x).view(b, t, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, t, WIDTH)
        x = self.ln1(x + self.o(y))
        x = self.ln2(x + self.down(F.gelu(self.up(x))))
        return self.ln3(F.gelu(self.transform(x))) @ self.words.weight.t() + self.bias


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    """Stem with max pooling, two blocks, average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.pool = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1)
        self.block1, self.block2 = BasicBlock(4, 4, 1), BasicBlock(4, 6, 2)
        self.average, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn(self.stem(x))))
        return self.fc(torch.flatten(self.average(self.block2(self.block1(x))), 1))


class AttentionByHand(nn.Module):
    """Masked attention written with matmul, triangles and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH)
        return scores.masked_fill(self.mask[: x.shape[1], : x.shape[1]] == 0, float("-inf")).softmax(-1) @ v
