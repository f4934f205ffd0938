#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps in JAX whose shardings are looked at: lowered for shapes only, no data.

    xla_models.py                     the names
    xla_models.py NAME > step.hlo     the step as HLO text
"""
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def sgd(loss):
    def step(weights, *batch):
        gradients = jax.grad(loss)(weights, *batch)
        return jax.tree_util.tree_map(lambda w, g: w - 0.01 * g, weights, gradients)
    return step


def adam(loss):
    """Weights and both moments in, the same out."""
    def update(w, m, v, g):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        return w - 0.001 * m / (jnp.sqrt(v) + 1e-6), m, v

    def step(state, *batch):
        weights, first, second = state
        gradients = jax.grad(loss)(weights, *batch)
        leaves, tree = jax.tree_util.tree_flatten(weights)
        made = [update(*rows) for rows in zip(leaves, *(jax.tree_util.tree_leaves(t) for t in
                                                        (first, second, gradients)))]
        return tuple(jax.tree_util.tree_unflatten(tree, column) for column in zip(*made))
    return step


def squared_error(x, y):
    return 0.5 * jnp.mean(jnp.sum((x - y) ** 2, axis=-1))


def cross_entropy(logits, labels):
    logs = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return -jnp.mean(jnp.sum(logs * jax.nn.one_hot(labels, logits.shape[-1]), axis=-1))


# Multi-layer perceptron.

def mlp_loss(weights, x, y):
    h = x
    for i, w in enumerate(weights):
        h = jnp.tanh(h @ w) if i + 1 < len(weights) else h @ w
    return squared_error(h, y)


def mlp(layers, batch, hidden):
    x = struct(batch, hidden)
    return sgd(mlp_loss), ([struct(hidden, hidden)] * layers, x, x)


# GPT: learned positions, layer norms, one QKV projection with the heads as a dimension, GELU.

def layer_norm(x, p):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def causal(scores):
    length = scores.shape[-1]
    mask = jnp.arange(length)[:, None] >= jnp.arange(length)[None, :]
    return jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)


def gpt_block(p, x):
    y = layer_norm(x, p["norm1"])
    q, k, v = (jnp.einsum("bsh,hnd->bsnd", y, p[name]) for name in ("q", "k", "v"))
    y = jnp.einsum("bnst,btnd->bsnd", causal(jnp.einsum("bsnd,btnd->bnst", q, k) / q.shape[-1]**0.5),
                   v)
    x = x + jnp.einsum("bsnd,ndh->bsh", y, p["out"])
    y = layer_norm(x, p["norm2"])
    return x + jax.nn.gelu(y @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


def gpt_block_weights(hidden, heads):
    head = struct(hidden, heads, hidden // heads)
    norm = {"scale": struct(hidden), "bias": struct(hidden)}
    return {"norm1": norm, "q": head, "k": head, "v": head,
            "out": struct(heads, hidden // heads, hidden), "norm2": norm,
            "up": struct(hidden, 4 * hidden), "up_bias": struct(4 * hidden),
            "down": struct(4 * hidden, hidden), "down_bias": struct(hidden)}


def block_loss(weights, x, y):
    for p in weights:
        x = gpt_block(p, x)
    return squared_error(x, y)


def gpt_blocks(layers, batch, sequence, hidden, heads, optimizer=sgd):
    x = struct(batch, sequence, hidden)
    weights = [gpt_block_weights(hidden, heads)] * layers
    return optimizer(block_loss), (with_moments(weights, optimizer), x, x)


def with_moments(weights, optimizer):
    return (weights, weights, weights) if optimizer is adam else weights


def gpt_loss(p, tokens, labels):
    x = p["table"][tokens] + p["positions"]
    for block in p["blocks"]:
        x = gpt_block(block, x)
    return cross_entropy(layer_norm(x, p["norm"]) @ p["head"], labels)


def gpt(layers, batch, sequence, hidden, heads, vocabulary, optimizer=adam):
    tokens = struct(batch, sequence, dtype=jnp.int32)
    weights = {"table": struct(vocabulary, hidden), "positions": struct(sequence, hidden),
               "blocks": [gpt_block_weights(hidden, heads)] * layers,
               "norm": {"scale": struct(hidden), "bias": struct(hidden)},
               "head": struct(hidden, vocabulary)}
    return optimizer(gpt_loss), (with_moments(weights, optimizer), tokens, tokens)


# A modern decoder: RMS norms, rotary positions, grouped-query attention, SwiGLU.

def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rotate(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(half)[None, :] / half)
    cosine, sine = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    pair = x.reshape(*x.shape[:-1], half, 2)
    a, b = pair[..., 0], pair[..., 1]
    return jnp.stack((a * cosine - b * sine, a * sine + b * cosine), axis=-1).reshape(x.shape)


def decoder_block(p, x):
    y = rms_norm(x, p["norm1"])
    q, k, v = (jnp.einsum("bsh,hnd->bsnd", y, p[name]) for name in ("q", "k", "v"))
    q, k = rotate(q), rotate(k)
    groups = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = causal(jnp.einsum("bsngd,btnd->bngst", groups, k) / q.shape[-1]**0.5)
    y = jnp.einsum("bngst,btnd->bsngd", scores, v).reshape(q.shape)
    x = x + jnp.einsum("bsnd,ndh->bsh", y, p["out"])
    y = rms_norm(x, p["norm2"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def decoder_weights(hidden, heads, groups, width):
    head = hidden // heads
    return {"norm1": struct(hidden), "q": struct(hidden, heads, head),
            "k": struct(hidden, groups, head), "v": struct(hidden, groups, head),
            "out": struct(heads, head, hidden), "norm2": struct(hidden),
            "gate": struct(hidden, width), "up": struct(hidden, width),
            "down": struct(width, hidden)}


def decoder_block_loss(weights, x, y):
    for p in weights:
        x = decoder_block(p, x)
    return squared_error(x, y)


def decoder_blocks(layers, batch, sequence, hidden, heads, groups, width):
    x = struct(batch, sequence, hidden)
    return (sgd(decoder_block_loss),
            ([decoder_weights(hidden, heads, groups, width)] * layers, x, x))


def decoder_loss(p, tokens, labels):
    x = p["table"][tokens]
    for block in p["blocks"]:
        x = decoder_block(block, x)
    return cross_entropy(rms_norm(x, p["norm"]) @ p["head"], labels)


def decoder(layers, batch, sequence, hidden, heads, groups, width, vocabulary, optimizer=adam):
    tokens = struct(batch, sequence, dtype=jnp.int32)
    weights = {"table": struct(vocabulary, hidden),
               "blocks": [decoder_weights(hidden, heads, groups, width)] * layers,
               "norm": struct(hidden), "head": struct(hidden, vocabulary)}
    return optimizer(decoder_loss), (with_moments(weights, optimizer), tokens, tokens)


# Mixture of experts: every expert sees a share of the tokens' places, gates weigh the results.

def experts_loss(p, x, y):
    gates = jax.nn.softmax(jnp.einsum("gsh,he->gse", x, p["gate"]), axis=-1)
    given = jnp.einsum("gsh,gse->egsh", x, gates)
    made = jnp.einsum("egsf,efh->egsh", jax.nn.relu(jnp.einsum("egsh,ehf->egsf", given, p["up"])),
                      p["down"])
    return squared_error(jnp.einsum("egsh,gse->gsh", made, gates), y)


def experts(groups, places, hidden, count):
    x = struct(groups, places, hidden)
    weights = {"gate": struct(hidden, count), "up": struct(count, hidden, 4 * hidden),
               "down": struct(count, 4 * hidden, hidden)}
    return sgd(experts_loss), (weights, x, x)


# Convolutions, pooling by a mean, a head.

def convnet_loss(p, images, labels):
    numbers = ("NHWC", "HWIO", "NHWC")
    x = images
    for name in ("first", "second", "third"):
        x = jax.lax.conv_general_dilated(x, p[name], (1, 1), "SAME", dimension_numbers=numbers)
        x = jax.nn.relu(x + p[name + "_bias"])
    return cross_entropy(jnp.mean(x, axis=(1, 2)) @ p["head"], labels)


def convnet(batch, width):
    weights = {"first": struct(3, 3, 8, width), "first_bias": struct(width),
               "second": struct(3, 3, width, 2 * width), "second_bias": struct(2 * width),
               "third": struct(3, 3, 2 * width, 2 * width), "third_bias": struct(2 * width),
               "head": struct(2 * width, 16)}
    return sgd(convnet_loss), (weights, struct(batch, 8, 8, 8), struct(batch, dtype=jnp.int32))


# A loop over stacked weights.

def scan_loss(weights, x, y):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
    return squared_error(x, y)


def scan(layers, batch, hidden):
    x = struct(batch, hidden)
    return sgd(scan_loss), (struct(layers, hidden, hidden), x, x)


# Transformer blocks as a loop over stacked weights, each computed again in the backward pass.

def scan_blocks_loss(weights, x, y):
    x, _ = jax.lax.scan(jax.checkpoint(lambda x, p: (gpt_block(p, x), None)), x, weights)
    return squared_error(x, y)


def scan_blocks(layers, batch, sequence, hidden, heads):
    x = struct(batch, sequence, hidden)
    weights = jax.tree_util.tree_map(lambda w: struct(layers, *w.shape),
                                     gpt_block_weights(hidden, heads))
    return sgd(scan_blocks_loss), (weights, x, x)


# Embedding tables, as recommendation models have them: looked up in pieces of one row each.

def embeddings_loss(p, features, labels):
    found = [table[features[:, i]] for i, table in enumerate(p["tables"])]
    h = jax.nn.relu(jnp.concatenate(found, axis=-1) @ p["up"])
    return squared_error(h @ p["down"], labels)


def embeddings(tables, batch, rows, width, hidden):
    weights = {"tables": [struct(rows, width)] * tables, "up": struct(tables * width, hidden),
               "down": struct(hidden, 16)}
    return (sgd(embeddings_loss),
            (weights, struct(batch, tables, dtype=jnp.int32), struct(batch, 16)))


# Experts by scatter and gather: each token goes to its best expert's next free place.

def routed_experts_loss(p, x, y):
    count, places = p["up"].shape[0], 2 * x.shape[0] // p["up"].shape[0]
    gates = jax.nn.softmax(x @ p["gate"], axis=-1)
    expert = jnp.argmax(gates, axis=-1)
    chosen = jax.nn.one_hot(expert, count, dtype=jnp.int32)
    place = jnp.sum(jnp.cumsum(chosen, axis=0) * chosen, axis=-1) - 1
    given = jnp.zeros((count, places, x.shape[1]), x.dtype).at[expert, place].add(x, mode="drop")
    made = jnp.einsum("epf,efh->eph", jax.nn.relu(jnp.einsum("eph,ehf->epf", given, p["up"])),
                      p["down"])
    made = made.at[expert, place].get(mode="fill", fill_value=0)
    return squared_error(made * jnp.max(gates, axis=-1, keepdims=True), y)


def routed_experts(tokens, hidden, count):
    x = struct(tokens, hidden)
    weights = {"gate": struct(hidden, count), "up": struct(count, hidden, 4 * hidden),
               "down": struct(count, 4 * hidden, hidden)}
    return sgd(routed_experts_loss), (weights, x, x)


# A graph network: messages along edges, summed at the nodes that they lead to.

def graph_loss(weights, nodes, senders, receivers, y):
    h = nodes
    for p in weights:
        messages = jax.nn.relu(h[senders] @ p["message"])
        sums = jax.ops.segment_sum(messages, receivers, num_segments=h.shape[0])
        h = h + jnp.tanh(sums @ p["update"])
    return squared_error(h, y)


def graph_network(layers, nodes, edges, hidden):
    weights = [{"message": struct(hidden, hidden), "update": struct(hidden, hidden)}] * layers
    x, ends = struct(nodes, hidden), struct(edges, dtype=jnp.int32)
    return sgd(graph_loss), (weights, x, ends, ends, x)


# Depthwise separable convolutions.

def depthwise_loss(p, images, labels):
    numbers = ("NHWC", "HWIO", "NHWC")
    x = images
    for block in p["blocks"]:
        x = jax.lax.conv_general_dilated(x, block["depth"], (1, 1), "SAME",
                                         dimension_numbers=numbers, feature_group_count=x.shape[-1])
        x = jax.nn.relu(x)
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, block["point"], (1, 1), "SAME",
                                                     dimension_numbers=numbers))
    return cross_entropy(jnp.mean(x, axis=(1, 2)) @ p["head"], labels)


def depthwise(batch, width, blocks):
    weights = {"blocks": [{"depth": struct(3, 3, 1, width), "point": struct(1, 1, width, width)}
                          for _ in range(blocks)], "head": struct(width, 16)}
    return sgd(depthwise_loss), (weights, struct(batch, 8, 8, width),
                                 struct(batch, dtype=jnp.int32))


# An LSTM as a loop over the positions of a sequence.

def lstm_loss(p, x, y):
    def cell(state, given):
        h, c = state
        parts = given @ p["input"] + h @ p["hidden"] + p["bias"]
        i, f, g, o = jnp.split(parts, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[1], p["hidden"].shape[0]), x.dtype)
    _, made = jax.lax.scan(cell, (start, start), x)
    return squared_error(made @ p["out"], y)


def lstm(length, batch, width, hidden):
    weights = {"input": struct(width, 4 * hidden), "hidden": struct(hidden, 4 * hidden),
               "bias": struct(4 * hidden), "out": struct(hidden, width)}
    x = struct(length, batch, width)
    return sgd(lstm_loss), (weights, x, x)


# A state-space model: a linear recurrence per channel, computed as a loop, between projections.

def state_space_loss(weights, x, y):
    def layer(h, p):
        u = jax.nn.silu(h @ p["in"])
        keep = jax.nn.sigmoid(u @ p["step"])

        def step(state, now):
            state = now[1] * state + (1 - now[1]) * now[0]
            return state, state

        _, states = jax.lax.scan(step, jnp.zeros(u.shape[::2], u.dtype),
                                 (jnp.swapaxes(u, 0, 1), jnp.swapaxes(keep, 0, 1)))
        return h + (jnp.swapaxes(states, 0, 1) * u) @ p["out"]

    for p in weights:
        x = layer(x, p)
    return squared_error(x, y)


def state_space(layers, batch, length, hidden):
    x = struct(batch, length, hidden)
    weights = [{"in": struct(hidden, 2 * hidden), "step": struct(2 * hidden, 2 * hidden),
                "out": struct(2 * hidden, hidden)}] * layers
    return sgd(state_space_loss), (weights, x, x)


MODELS = {
    "mlp-wide": lambda: mlp(4, 64, 512),
    "mlp-deep-batch": lambda: mlp(4, 4096, 128),
    "gpt-block": lambda: gpt_blocks(1, 16, 32, 128, 8),
    "gpt-2-blocks-adam": lambda: gpt_blocks(2, 16, 32, 128, 8, adam),
    "gpt-2-layers": lambda: gpt(2, 16, 32, 128, 8, 512),
    "decoder-block": lambda: decoder_blocks(1, 16, 32, 128, 16, 8, 512),
    "experts": lambda: experts(16, 32, 64, 8),
    "convnet": lambda: convnet(64, 32),
    "scan": lambda: scan(12, 64, 256),
    "scan-blocks": lambda: scan_blocks(3, 16, 32, 128, 8),
    "embeddings": lambda: embeddings(8, 512, 4096, 64, 256),
    "routed-experts": lambda: routed_experts(512, 64, 8),
    "graph": lambda: graph_network(2, 1024, 4096, 64),
    "depthwise": lambda: depthwise(64, 64, 2),
    "lstm": lambda: lstm(8, 64, 64, 128),
    "state-space": lambda: state_space(2, 16, 16, 64),
    # For timing the planner only: nothing of this size is run.
    "gpt-32-layers": lambda: gpt(32, 8, 1024, 2560, 32, 51200),
    "decoder-8b": lambda: decoder(32, 8, 2048, 4096, 32, 8, 14336, 128256),
}


def lowered(name):
    step, arguments = MODELS[name]()
    return jax.jit(step, donate_argnums=0).lower(*arguments)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("\n".join(MODELS))
    elif len(sys.argv) == 2 and sys.argv[1] in MODELS:
        print(lowered(sys.argv[1]).as_text(dialect="hlo"))
    else:
        sys.exit(__doc__)
