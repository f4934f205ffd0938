# SPDX-License-Identifier: Apache-2.0
"""auto_shard(): a transformer that is trained on many devices has the losses that it has on one."""

import math
import os
import sys
import unittest

import ranks

STEPS, LAYERS, BATCH, LENGTH, WIDTH, HEADS, WORDS = 20, 2, 16, 16, 64, 4, 97
PROFILE = os.path.join(os.environ["SOURCE_DIR"], "tests", "fixtures", "profiles", "lab-2x4.json")


def devices(count=8):
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy

    assert jax.device_count() == count
    return jax, numpy


def model(jax, numpy):
    """Parameters, batches and a training step of a small decoder."""
    jnp = jax.numpy
    random = numpy.random.default_rng(5)

    def weight(*shape):
        return random.normal(0, 0.05, shape).astype(numpy.float32)

    layers = [
        {"qkv": weight(WIDTH, 3, WIDTH), "out": weight(WIDTH, WIDTH), "up": weight(WIDTH, 4 * WIDTH),
         "down": weight(4 * WIDTH, WIDTH), "scale": numpy.ones((2, WIDTH), numpy.float32)}
        for _ in range(LAYERS)
    ]  # fmt: skip
    parameters = {"words": weight(WORDS, WIDTH), "layers": layers, "head": weight(WIDTH, WORDS)}
    batches = [random.integers(0, WORDS, (BATCH, LENGTH + 1)).astype(numpy.int32)] * STEPS  # it learns that one by heart

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def attend(x, layer):
        q, k, v = (jnp.einsum("bld,dhe->blhe", x, layer["qkv"][:, i].reshape(WIDTH, HEADS, -1)) for i in range(3))
        scores = jnp.einsum("blhe,bmhe->bhlm", q, k) / (WIDTH // HEADS) ** 0.5
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
        return jnp.einsum("bhlm,bmhe->blhe", weights, v).reshape(BATCH, LENGTH, WIDTH) @ layer["out"]

    def loss_of(parameters, batch):
        x = parameters["words"][batch[:, :-1]]
        for layer in parameters["layers"]:
            x = x + attend(norm(x, layer["scale"][0]), layer)
            x = x + jax.nn.gelu(norm(x, layer["scale"][1]) @ layer["up"]) @ layer["down"]
        logs = jax.nn.log_softmax(x @ parameters["head"])
        return -jnp.mean(jnp.take_along_axis(logs, batch[:, 1:, None], -1))

    def step(parameters, batch):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        return jax.tree_util.tree_map(lambda p, g: p - 0.5 * g, parameters, gradients), loss

    return parameters, batches, step


def train(step, parameters, batches):
    losses = []
    for batch in batches:
        parameters, loss = step(parameters, batch)
        losses.append(float(loss))
    return losses, parameters


def same_losses(rank, shape, cluster, memory_share):
    """`memory_share`: of what the best plan without a limit needs."""
    jax, numpy = devices(math.prod(shape))
    import crossmesh.jax

    parameters, batches, step = model(jax, numpy)
    expected, whole = train(jax.jit(step), parameters, batches)
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()).reshape(shape), [f"a{i}" for i in range(len(shape))])
    options = {"cluster": cluster, "donate_argnums": 0, "hosts": shape[0] if cluster else None}
    planned = crossmesh.jax.auto_shard(step, mesh, **options)
    found = planned.plan(parameters, batches[0])
    assert found.bound <= found.objective * (1 + 1e-6) and found.peak_bytes > 0, found
    if memory_share is not None:
        limit = memory_share * found.peak_bytes
        planned = crossmesh.jax.auto_shard(step, mesh, **options, memory_limit=limit, time_limit=6.0)
        less = planned.plan(parameters, batches[0])
        assert less.peak_bytes <= limit and less.objective >= found.bound, (found, less)
    losses, sharded = train(planned, parameters, batches)
    assert losses[0] - losses[-1] > 0.05, losses
    numpy.testing.assert_allclose(losses, expected, rtol=1e-4)
    cut = [leaf for leaf in jax.tree_util.tree_leaves(sharded) if not leaf.sharding.is_fully_replicated]
    program = planned.compiled(parameters, batches[0])
    places = jax.tree_util.tree_leaves(program.input_shardings[0])
    assert cut or any(not place.is_fully_replicated for place in places), "nothing is sharded"
    for one, other in zip(jax.tree_util.tree_leaves(sharded), jax.tree_util.tree_leaves(whole)):
        numpy.testing.assert_allclose(jax.device_get(one), jax.device_get(other), rtol=1e-3, atol=1e-4)


def refusals(rank):
    jax, numpy = devices()
    import crossmesh.jax
    from crossmesh import errors

    parameters, batches, step = model(jax, numpy)
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()), "x")
    for options, text in (
        ({"memory_limit": 1000.0}, "1000"),
        ({"cluster": "/nowhere/profile.json"}, "/nowhere/profile.json"),
        ({"hosts": 3}, "3 hosts"),
    ):
        try:
            crossmesh.jax.auto_shard(step, mesh, **options)(parameters, batches[0])
            raise AssertionError(f"not refused: {options}")
        except errors.CrossmeshError as error:
            assert text in str(error), (text, error)


def programs(rank):
    """Functions of many kinds have the results that they have on one device, and plans lie as demanded."""
    jax, numpy = devices(4)
    jnp, P = jax.numpy, jax.sharding.PartitionSpec
    import crossmesh.jax
    from crossmesh import errors

    mesh = jax.sharding.Mesh(numpy.array(jax.devices()).reshape(2, 2), ("data", "model"))
    random = numpy.random.default_rng(2)

    def array(*shape):
        return random.normal(0, 0.05, shape).astype(numpy.float32)

    up, down, x, key = array(64, 128), array(128, 64), array(32, 64), jax.random.key(3)

    def mlp(up, down, x):
        return jnp.mean((jax.nn.relu(x @ up) @ down) ** 2)

    def remat(up, down, x):
        return jnp.mean(jax.checkpoint(lambda x: jax.nn.relu(x @ up) @ down)(x) ** 2)

    def dropout(up, down, x, key):
        hidden = jax.nn.relu(x @ up)
        return jnp.mean((jnp.where(jax.random.bernoulli(key, 0.9, hidden.shape), hidden, 0) @ down) ** 2)

    def scan(stack, x, key):
        def body(x, given):
            weight, key = given
            return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), jnp.tanh(x @ weight), 0.0), None

        return jnp.mean(jax.lax.scan(body, x, (stack, jax.random.split(key, 3)))[0] ** 2)

    def experts(route, weights, x):
        chances = jax.nn.softmax(x @ route)
        choice = jnp.argmax(chances, -1)
        place = jnp.cumsum(jax.nn.one_hot(choice, 4, dtype=jnp.int32), 0)[jnp.arange(len(x)), choice] - 1
        sent = jnp.zeros((4, 8, x.shape[1])).at[choice, place].add(x, mode="drop")
        back = jnp.einsum("ecd,edf->ecf", sent, weights).at[choice, place].get(mode="fill", fill_value=0)
        return jnp.mean((back * jnp.max(chances, -1)[:, None]) ** 2)

    def embed(table, weight, ids):
        return jnp.mean((table[ids] @ weight) ** 2)

    ids = random.integers(0, 256, 32).astype(numpy.int32)
    for function, arguments in (
        (mlp, (up, down, x)), (remat, (up, down, x)), (dropout, (up, down, x, key)), (scan, (array(3, 64, 64), x, key)),
        (experts, (array(64, 4), array(4, 64, 64), x)), (embed, (array(256, 64), up, ids)),
    ):  # fmt: skip
        step = jax.value_and_grad(function, argnums=(0, 1) if function is not scan else 0)
        sharded = crossmesh.jax.auto_shard(step, mesh)
        for one, other in zip(*map(jax.tree_util.tree_leaves, (sharded(*arguments), jax.jit(step)(*arguments)))):
            numpy.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=function.__name__)

    # Axes of one size are told apart, everywhere that something is demanded.
    def scaled(up, down, x, times):
        return {"made": jax.nn.relu(x @ up) @ down * times, "up": up + 1}

    for wanted in (P(None, "model"), P("data", None), P(("data", "model"), None)):
        demands = {"in_shardings": (wanted, None, P("model")), "out_shardings": {"made": P("data", "model"), "up": None}}
        found = crossmesh.jax.auto_shard(scaled, mesh, static_argnums=3, **demands)
        given, made = found.specs(up, down, x, 2)
        assert given[0] == wanted and tuple(given[2]) == ("model", None) and made["made"] == P("data", "model"), (given, made)
        for times in (2, 3):
            numpy.testing.assert_allclose(found(up, down, x, times)["made"], scaled(up, down, x, times)["made"], rtol=1e-4, atol=1e-6)
    try:
        crossmesh.jax.auto_shard(mlp, mesh, in_shardings=(P("data"),))(up, down, x)
        raise AssertionError("not refused")
    except errors.InputError as error:
        assert "tree" in str(error), error

    found.save("plans.json")
    again = crossmesh.jax.auto_shard(scaled, mesh, "/nowhere/profile.json", static_argnums=3, plans="plans.json")
    assert again.specs(up, down, x, 2) == (given, made)  # nothing is planned, or the profile would be missed
    numpy.testing.assert_allclose(again(up, down, x, 2)["made"], scaled(up, down, x, 2)["made"], rtol=1e-4, atol=1e-6)


class AutoShard(unittest.TestCase):
    def test_programs_of_many_kinds(self):
        said = ranks.run(1, programs, timeout=6 * ranks.TIMEOUT)
        self.assertNotIn("Exception ignored", str(said))

    def test_on_one_axis(self):
        ranks.run(1, same_losses, (8,), None, None, timeout=6 * ranks.TIMEOUT)

    def test_on_four_axes(self):
        ranks.run(1, same_losses, (2, 2, 2, 2), None, None, timeout=6 * ranks.TIMEOUT)

    def test_on_two_axes_with_a_profile_and_little_memory(self):
        ranks.run(1, same_losses, (2, 4), PROFILE, 0.5, timeout=6 * ranks.TIMEOUT)

    def test_refusals(self):
        ranks.run(1, refusals, timeout=3 * ranks.TIMEOUT)


if __name__ == "__main__":
    sys.exit(unittest.main())
