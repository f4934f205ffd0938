# SPDX-License-Identifier: Apache-2.0
"""`autopar plan` and `autopar shard` on whole training steps as JAX lowers them: all of a step is planned whatever its
extents are, activation checkpointing is kept, annotations bind. Parameters are counted from the models' shapes."""

import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

AUTOPAR = os.environ["AUTOPAR"]
CLUSTER = str(pathlib.Path(os.environ["SOURCE_DIR"]) / "tests/fixtures/profiles/lab-2x4.json")


def struct(*shape, dtype=jnp.float32, sharding=None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def norm(x, scale):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


class Gpt:
    """A step of a small GPT: its text, and what its weights are."""

    def __init__(self, batch, sequence, vocabulary, width=64, heads=4, layers=2, tied=False, adam=True, clip=False,
                 scan=False, wrap=lambda block: block):
        self.heads, self.scan, self.tied, self.wrap = heads, scan, tied, wrap
        block = {"n1": (width,), "n2": (width,), "up": (width, 4 * width), "down": (4 * width, width)}
        block |= {name: (width, width) for name in "qkvo"}
        shapes = {"tokens": (vocabulary, width), "places": (sequence, width), "norm": (width,)}
        shapes |= {} if tied else {"head": (width, vocabulary)}
        self.parameters = sum(map(math.prod, shapes.values())) + layers * sum(map(math.prod, block.values()))
        weights = {name: struct(*shape) for name, shape in shapes.items()}
        weights["blocks"] = (
            {name: struct(layers, *shape) for name, shape in block.items()} if scan
            else [{name: struct(*shape) for name, shape in block.items()} for _ in range(layers)]
        )
        data = struct(batch, sequence, dtype=jnp.int32)
        state = {"w": weights, "m": weights, "t": struct()} if adam else {"w": weights}

        def step(state, tokens, labels):
            gradients = jax.grad(self.loss)(state["w"], tokens, labels)
            if clip:
                size = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
                gradients = jax.tree.map(lambda g: g / jnp.maximum(size, 1.0), gradients)
            if not adam:
                return {"w": jax.tree.map(lambda w, g: w - 0.1 * g, state["w"], gradients)}
            t, m = state["t"] + 1, jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradients)
            w = jax.tree.map(lambda w, m: w - 0.1 * m / (1 - 0.9**t) - 0.01 * w, state["w"], m)
            return {"w": w, "m": m, "t": t}

        self.text = jax.jit(step, donate_argnums=0).lower(state, data, data).as_text("hlo")

    def block(self, x, p):
        y = norm(x, p["n1"])
        q, k, v = (jnp.reshape(y @ p[name], (*x.shape[:2], self.heads, -1)) for name in "qkv")
        y = jnp.einsum("bnst,btnd->bsnd", jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, k)), v)
        x = x + y.reshape(x.shape) @ p["o"]
        return x + jax.nn.gelu(norm(x, p["n2"]) @ p["up"]) @ p["down"]

    def loss(self, weights, tokens, labels):
        x, block = weights["tokens"][tokens] + weights["places"], self.wrap(self.block)
        if self.scan:
            x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, weights["blocks"])
        else:
            for p in weights["blocks"]:
                x = block(x, p)
        logits = norm(x, weights["norm"]) @ (weights["tokens"].T if self.tied else weights["head"])
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


class Steps(unittest.TestCase):
    def autopar(self, command, text, *options):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "step.hlo"
            path.write_text(text, encoding="utf-8")
            return subprocess.run([AUTOPAR, command, *(("--model",) if command == "plan" else ()), path, *options],
                                  capture_output=True, text=True, check=False)

    def plan(self, text, *options):
        """The plan in one micro-batch, and what is said about the file."""
        options = ("--cluster", CLUSTER, "--micro-batches", "1", *options)
        made = self.autopar("plan", text, *options)
        self.assertEqual(made.returncode, 0, made.stderr)
        told = [line for line in made.stdout.splitlines() if line.startswith("# ")]
        return json.loads(self.autopar("plan", text, *options, "--json").stdout), told

    def batch(self, samples):
        return "--global-batch", str(samples)

    def check(self, extents, harmless, **options):
        """All of the model is planned, and in the time of a vocabulary that equals nothing else."""
        model, other = Gpt(*extents, **options), Gpt(*harmless, **options)
        (plan, told), (same, also) = (self.plan(m.text, *self.batch(extents[0])) for m in (model, other))
        self.assertEqual(plan["model"]["parameters"], model.parameters)
        self.assertEqual(same["model"]["parameters"], other.parameters)
        self.assertEqual(told[0].split(": ")[1].split(";")[0], also[0].split(": ")[1].split(";")[0])
        self.assertAlmostEqual(plan["predicted"]["step_s"] / same["predicted"]["step_s"], 1, delta=0.15)

    def test_tokens_as_many_as_words(self):
        self.check((4, 128, 512), (4, 128, 520))

    def test_a_long_sequence_and_as_many_words(self):
        self.check((8, 512, 4096), (8, 512, 4104), adam=False)

    def test_words_as_many_as_the_width(self):
        self.check((4, 32, 64), (4, 32, 72), clip=True)

    def test_a_sequence_as_long_as_the_width(self):
        self.check((4, 64, 300), (4, 64, 304), tied=True, clip=True)

    def test_a_batch_of_as_many_as_heads(self):
        self.check((8, 64, 512), (8, 64, 520), heads=8, scan=True)

    def test_one_sample(self):
        self.check((1, 64, 64), (1, 64, 72), tied=True)

    def test_checkpointed_blocks_keep_less(self):
        for scan in (False, True):
            plain, told = self.plan(Gpt(4, 128, 512, layers=4, scan=scan).text, *self.batch(4))
            self.assertFalse([line for line in told if "checkpointing" in line])
            again = Gpt(4, 128, 512, layers=4, scan=scan, wrap=jax.checkpoint).text
            kept, told = self.plan(again, *self.batch(4))
            self.assertTrue([line for line in told if "(activation checkpointing): kept" in line])
            self.assertTrue(kept["schedule"]["rematerialize"])
            self.assertLess(kept["stages"][0]["memory"]["activation_bytes"],
                            0.7 * plain["stages"][0]["memory"]["activation_bytes"])
            off, told = self.plan(again, *self.batch(4), "--recompute", "off")
            self.assertTrue([line for line in told if "as --recompute says instead" in line])
            self.assertFalse(off["schedule"]["rematerialize"])
            self.assertAlmostEqual(off["predicted"]["step_s"] / plain["predicted"]["step_s"], 1, delta=0.02)

    def test_a_policy_is_replaced_and_that_is_said(self):
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        _, told = self.plan(Gpt(4, 128, 512, wrap=lambda block: jax.checkpoint(block, policy=policy)).text,
                            *self.batch(4))
        self.assertTrue([line for line in told if "(activation checkpointing): replaced" in line])

    def test_two_losses_for_separate_weights_are_refused(self):
        def step(weights, x):
            first, second = (jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w) for w in weights)
            return weights[0] - first, weights[1] - second

        text = jax.jit(step, donate_argnums=0).lower((struct(64, 64), struct(64, 64)), struct(32, 64)).as_text("hlo")
        made = self.autopar("plan", text, "--cluster", CLUSTER)
        self.assertEqual(made.returncode, 2, made.stdout)
        self.assertRegex(made.stderr, r"^[^\n]*no weight has a part in the gradients of most others[^\n]*\n$")

    def small(self, update, returned=lambda weights, x: ()):
        """A step of two products: what it tells, or why it is refused."""

        def loss(weights, x):
            return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1]) ** 2)

        def step(weights, x):
            made = update(weights, jax.grad(loss)(weights, x))
            return made, returned(loss, made, x)

        text = jax.jit(step, donate_argnums=0).lower([struct(64, 64), struct(64, 64)], struct(32, 64)).as_text("hlo")
        return self.autopar("plan", text, "--cluster", CLUSTER, "--global-batch", "32")

    def test_what_a_plan_leaves_out_is_told(self):
        def muon(weights, gradients):
            return [w - 1.5 * g + 0.5 * (g @ g.T) @ g for w, g in zip(weights, gradients, strict=True)]

        def last_alone(weights, gradients):
            return [weights[0], weights[1] - gradients[1]]

        def sgd(weights, gradients):
            return [w - g for w, g in zip(weights, gradients, strict=True)]

        none = lambda *_: ()  # noqa: E731
        # Forward 2 products of 32 x 64 x 64, backward 3; of 64 x 64 x 64 the optimizer has 4.
        self.assertIn(f"{100 * 8 / (5 + 8):.0f} % of the FLOPs of all products", self.small(muon, none).stdout)
        self.assertIn("# 1 weights that the file's step gives back as they were", self.small(last_alone, none).stdout)
        self.assertNotIn("the file's step", self.small(sgd, none).stdout)
        # The loss of the new weights: 2 products more that lead to no weight.
        made = self.small(sgd, lambda loss, weights, x: loss(weights, x))
        self.assertEqual(made.returncode, 2, made.stdout)
        self.assertIn(f"{100 * 2 / 7:.0f} % of the FLOPs of its products are not explained", made.stderr)

    def test_strides_are_explained(self):
        """The gradient of a strided convolution multiplies as much as it does, whatever zeros are written between."""

        def loss(weights, x, y):
            for w in weights[:-1]:
                x = jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
                x = jax.nn.relu((x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5))
            return jnp.mean((x.mean((1, 2)) @ weights[-1] - y) ** 2)

        def step(weights, x, y):
            return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x, y), strict=True)]

        weights = [struct(3, 3, 4, 32), struct(3, 3, 32, 64), struct(3, 3, 64, 64), struct(64, 10)]
        text = jax.jit(step, donate_argnums=0).lower(weights, struct(8, 64, 64, 4), struct(8, 10)).as_text("hlo")
        plan, _ = self.plan(text, *self.batch(8))
        self.assertEqual(plan["model"]["parameters"], sum(math.prod(w.shape) for w in weights))

    def annotated(self, **constraint):
        """Two products; the second weight is left to the plan."""
        mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        hidden = NamedSharding(mesh, PartitionSpec(*constraint.get("hidden", (PartitionSpec.UNCONSTRAINED,) * 2)))

        def loss(weights, x):
            h = jax.lax.with_sharding_constraint(jnp.tanh(x @ weights[0]), hidden)
            return jnp.sum((h @ weights[1]) ** 2)

        def step(weights, x):
            return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x), strict=True)]

        first = NamedSharding(mesh, PartitionSpec(*constraint.get("first", (None, ("x", "y")))))
        weights = [struct(64, 128, sharding=first), struct(128, 64)]
        return jax.jit(step, donate_argnums=0).lower(weights, struct(32, 64)).as_text("hlo")

    def specs(self, text, mesh):
        made = self.autopar("shard", text, "--mesh", mesh, "--json")
        self.assertEqual(made.returncode, 0, made.stderr)
        return {node["node"]: node["strategy"].split()[0] for node in json.loads(made.stdout)["nodes"]}

    def test_annotations_bind_sharding(self):
        for first, mesh, spec in (
            ((None, ("x", "y")), "2x4", "RS01"), ((("x", "y"),), "2x4", "S01R"), (("x", "y"), "2x4", "S0S1"),
            ((), "2x4", "RR"), ((None, ("x", "y")), "1x8", "RS1"), (("x",), "2x2", "S[01]R"),
        ):  # fmt: skip
            specs = self.specs(self.annotated(first=first), mesh)
            self.assertRegex(specs["weights_0_.1"], spec)
        constrained = self.specs(self.annotated(hidden=("y", None)), "2x4")
        results = [spec.split("->")[1] for name, spec in constrained.items() if name.startswith("sharding_constraint")]
        self.assertEqual(set(results), {"S1R"})
        opened = self.specs(self.annotated(hidden=(PartitionSpec.UNCONSTRAINED, ("x", "y"))), "2x4")
        results = [spec.split("->")[1] for name, spec in opened.items() if name.startswith("sharding_constraint")]
        self.assertEqual(set(results), {"RS01"})

    def test_annotations_bind_plans(self):
        plan, _ = self.plan(self.annotated(hidden=(None, ("x", "y"))), *self.batch(32))
        operators = {op["name"]: op for part in plan["stages"][0]["sharding"] for op in part["ops"]}
        pins = [op["results"] for name, op in operators.items() if name.startswith("sharding_constraint")]
        self.assertTrue(pins)
        for spec in pins:
            self.assertIn(spec, ("RS01", "RS1") if plan["stages"][0]["mesh"] != "2x4" else ("RS01",))

    def test_weights_in_other_forms_lie_as_demanded(self):
        """Cast and transposed: rows of what is stored are columns of what is used. Or they are gathered for use."""
        mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

        def loss(weights, x):
            first, second = (w.astype(jnp.bfloat16) for w in weights)
            return jnp.sum((jnp.tanh(x.astype(jnp.bfloat16) @ first.T) @ second).astype(jnp.float32) ** 2)

        def step(weights, x):
            return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x), strict=True)]

        for spec in (PartitionSpec("x", None), PartitionSpec(None, "x")):
            weights = [struct(256, 64, sharding=NamedSharding(mesh, spec)), struct(256, 64)]
            text = jax.jit(step, donate_argnums=0).lower(weights, struct(64, 64)).as_text("hlo")
            plan, _ = self.plan(text, *self.batch(64), "--stages", "1")
            (product,) = (op for part in plan["stages"][0]["sharding"] for op in part["ops"] if op["name"] == "dot_general.5")
            used = product["operands"].split(",")[1]  # of 64 x 256
            cut, whole = (1, 0) if spec[0] == "x" else (0, 1)
            tokens = re.findall("[RS][0-9]*", used)
            self.assertEqual(tokens[whole], "R")
            if plan["stages"][0]["mesh"] == "2x4" and tokens[cut] != "S01":
                # Its gradient is partial over the other axis, over which the weight is then kept in parts.
                self.assertIn("S", product["operands"].split(",")[0])

    def test_what_is_exported_is_read_as_it_was_meant(self):
        with tempfile.TemporaryDirectory() as directory:
            path = str(pathlib.Path(directory) / "sharded.hlo")
            text = Gpt(8, 64, 512, layers=1, adam=False).text
            first = json.loads(self.autopar("shard", text, "--mesh", "2x4", "--json", "--export-hlo", path).stdout)
            again = json.loads(self.autopar("shard", pathlib.Path(path).read_text(), "--mesh", "2x4", "--json").stdout)
        self.assertAlmostEqual(again["objective"] / first["objective"], 1, delta=1e-6)

    def test_annotations_that_cannot_hold_are_refused(self):
        text = self.annotated()
        for command, options in (("shard", ("--mesh", "2x2")), ("plan", ("--cluster", CLUSTER, "--hosts", "1"))):
            made = self.autopar(command, text, *options)
            self.assertEqual(made.returncode, 2, made.stdout)
            self.assertRegex(made.stderr, r"^autopar \w+: .*annotation cuts 'weights_0_.1' into 1x8 parts, which no [^\n]*\n$")


if __name__ == "__main__":
    unittest.main()
