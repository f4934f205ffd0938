#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real training on an emulated cluster, 4 hosts with 2 ranks each if nothing else is asked for, predicted and measured.

    sudo bench/training_campaign.py -b build/release -o campaign.csv [--budget SECONDS] [--pairs COUNT] [--nic 1gbit]
    sudo bench/training_campaign.py -o eager.csv --models unet --hosts 2 --each 1 --same-stages --nic 190mbit --share 0.5
        --batch 1024 --micro-batches 16        # what sending ahead gains on a slow link, as in the paper's ablation of overlap

Every rank has one thread and a fixed share of a core (emulated-cluster's --core-share), so that ranks do not take each
other's time; it is measured so (autopar probe, crossmesh.torch.probe), trained so, and planned for. GPT, Llama (grouped queries,
tied embeddings), MoE, T5 (cross-attention) and U-Net (skips), which tests/plugins/python/training has too: 20 steps of
each plan beside one process (losses and norms of gradients within 1e-4), and DDP, FSDP and a Megatron plan by torch itself.
A machine's rates change within seconds, so the plans of a model take turns, some steps each, and the middle step counts:
pipelines of the same stages, and those of one stage beside torch's own; the model's operators are measured before. The model
on each rank by itself, with a device's part of a micro-batch at a time, takes turns with them: how many times as long as
predicted that takes (column `pace`) is what the machine's speed, and who takes turns there, have changed since, and what
devices compute in the plans is predicted to take as many times as long. A row for each (model, plan) goes to the CSV when
their rounds are over; what has one is not run again. The summary at the end is also all that `--report` does.
"""
import argparse
import csv
import dataclasses
import functools
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "..", "plugins", "python", "src")
TESTS = os.path.join(HERE, "..", "tests", "plugins", "python")
STEPS, ROUNDS = 20, 5
RATE = 3e-4  # at 3e-3 one process parts from itself, with 8 micro-batches for 4, by 1e-2 within 20 steps
NAME = "xmtrain"
COLUMNS = ["model", "plan", "predicted_s", "measured_s", "pace", "loss_error", "norm_error", "equal", "note"]
# Stages, samples, features, schedule; the mesh of a stage lies on the ranks of as many hosts as it needs.
PLANS = [
    (1, 8, 1, "1f1b"), (4, 2, 1, "1f1b"), (4, 2, 1, "eager-1f1b"), (2, 4, 1, "1f1b"), (4, 1, 2, "1f1b"), (1, 4, 2, "1f1b"),
    (2, 2, 2, "1f1b"), (4, 2, 1, "gpipe"), (4, 2, 1, "zb-h1"), (2, 4, 1, "gpipe"), (4, 2, 1, "eager-1f1b-w"),
    (2, 4, 1, "eager-1f1b"), (2, 1, 1, "1f1b"), (2, 1, 1, "eager-1f1b"),
]  # fmt: skip
BY_TORCH = ["ddp", "fsdp", "megatron"]


# --- A rank -----------------------------------------------------------------------------------------------------------


def models():
    """By name: what makes the model, its loss, its batches. Wider than where only equality counts."""
    sys.path[:0] = [TESTS, os.path.join(TESTS, "training"), HERE, SOURCES]
    import models as small
    import torch
    import training as gpt

    small.WIDTH, small.LENGTH, small.VOCABULARY = 128, 64, 512
    gpt.WIDTH, gpt.LENGTH, gpt.WORDS = 128, 64, 1024

    def tokens(steps, size):
        generator = torch.Generator().manual_seed(5)
        for _ in range(steps):
            yield tuple(torch.randint(0, gpt.WORDS, (2, size, gpt.LENGTH), generator=generator))

    unet, mse, images = small.MODELS["unet"]
    moe, token_loss, token_batches = small.MODELS["moe"]
    found = {"gpt": (small.seeded(gpt.Transformer), gpt.loss, tokens), **small.MODELS}
    found["unet"] = small.seeded(lambda: small.UNet(32)), mse, images
    # A token's best two experts change where their shares are nearly equal, and with them the loss, by what sums are rounded
    # to: so in the precision in which they are not.
    found["moe"] = lambda: moe().double(), token_loss, token_batches
    return found


def export_once():
    """Plans of a model begin with what torch.export makes of it, which takes ranks of little processor longest."""
    from crossmesh.torch import _plan

    export, kept = _plan.export_program, {}

    def exported(model, inputs, loss, keywords):
        key = (loss, *((tuple(value.shape), value.dtype) for value in (*model.parameters(), *inputs)))
        if key not in kept:
            kept[key] = export(model, inputs, loss, keywords)
        return kept[key]

    _plan.export_program = exported


def distance(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


class Training:
    """The steps of one way to train, some at a time: others may take turns with it."""

    def __init__(self, step, clip, optimizer, batches, close=lambda: None):
        self._step, self._clip, self._optimizer, self._batches, self.close = step, clip, optimizer, iter(batches), close
        self._losses, self._norms, self._times = [], [], []

    def go_on(self, count):
        """The next steps. The first of them comes out of other work, and is not timed."""
        import torch.distributed as dist

        for n, batch in enumerate(itertools.islice(self._batches, count)):
            dist.barrier()
            mine = [time.perf_counter()]
            self._optimizer.zero_grad()
            self._losses.append(float(self._step(*batch)))
            mine.append(time.perf_counter())
            dist.barrier()
            self._norms.append(float(self._clip()))
            dist.barrier()
            mine.append(time.perf_counter())
            self._optimizer.step()
            mine.append(time.perf_counter())
            if n > 0:
                self._times.append(mine)

    def found(self):
        """Seconds of the middle step, without clipping, and the losses and norms of all. From when the first rank begins
        until the last one ends, by the clock that all hosts of one machine have. Barriers between are not in it, nor that
        they have ranks wait with their updates: a step's last rank need not be the one whose update takes longest."""
        import torch.distributed as dist

        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, self._times)
        steps = [
            max(end + after - update for _, end, update, after in step) - min(begin for begin, *_ in step)
            for step in zip(*every)
        ]
        return statistics.median(steps), self._losses, self._norms


def by_plan(entry, micro_batches, profile, kept, case, batches, max_norm, same_stages):
    """One of PLANS; the file of the plan is kept. With `same_stages` 1F1B runs those that eager-1F1B is planned to have."""
    import torch
    from crossmesh.torch import apply, plan

    make, loss, _ = case
    stages, data, tensor, schedule = entry
    *given, target = batches[0]
    counts = micro_batches if stages > 1 else [1, micro_batches]  # what torch's own plans run is one

    def planned(schedule):
        return plan(make(), given, profile, loss=loss, target=target, micro_batches=counts, stages=stages,
                    data_parallel=data, tensor_parallel=tensor, schedule=schedule)  # fmt: skip

    made = planned(schedule)
    if schedule == "1f1b" and stages > 1 and same_stages:
        base = planned("eager-1f1b")
        document = {**base.document, "schedule": made.document["schedule"]}
        made = dataclasses.replace(base, document=document, schedule=schedule, order=made.order)
    if torch.distributed.get_rank() == 0:
        with open(kept, "w", encoding="utf-8") as file:
            json.dump(made.document, file)
    applied = apply(make(), made)
    optimizer = applied.optimizer(torch.optim.AdamW, lr=RATE)
    clip = functools.partial(applied.clip_grad_norm_, max_norm)
    return Training(applied.step, clip, optimizer, batches, applied.close)


def by_one_device(case, batch, parts, micro_batches, profile):
    """The model on each rank by itself, on one of so many parts of the batch; and what a step is predicted to take."""
    import torch
    from crossmesh.torch import plan
    from crossmesh.torch._apply import apply_alone

    make, loss, _ = case
    *given, target = part = [value[: len(value) // parts] for value in batch]
    made = plan(make(), given, profile, loss=loss, target=target, micro_batches=micro_batches, stages=1, hosts=1,
                devices_per_host=1)  # fmt: skip
    applied = apply_alone(make(), made, torch.device("cpu"))
    optimizer = applied.optimizer(torch.optim.AdamW, lr=RATE)
    return Training(applied.step, lambda: 0.0, optimizer, itertools.repeat(part), applied.close), made.step_seconds


def predicted_at(pace, path):
    """The step of a plan, and the plan in its file, whose devices take so many times as long for all they compute. Gradients
    go by curves that were measured at another time."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    document.pop("digest", None)  # it is of what the planner made
    for stage in document["stages"]:
        stage["seconds"] = {what: seconds * (1 if what == "sync" else pace) for what, seconds in stage["seconds"].items()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)
    tool = os.path.join(os.path.dirname(os.environ["CROSSMESH_LIBRARY"]), "planner", "cli", "autopar")
    found = subprocess.run([tool, "simulate", "--json", path], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(found)["step_ns"] * 1e-9


def by_torch(kind, case, batches, max_norm):
    """The same batch by torch alone: each rank its samples, or two ranks of a host the halves of every block."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    make, loss, _ = case
    model, rank, size = make(), dist.get_rank(), dist.get_world_size()
    share, part, copies = size, rank, None
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        mesh = init_device_mesh("cpu", (size,))
        for block in itertools.chain.from_iterable(m for m in model.modules() if isinstance(m, torch.nn.ModuleList)):
            if any(True for _ in block.children()):
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        each = int(os.environ["LOCAL_WORLD_SIZE"])
        hosts = torch.distributed.get_world_size() // each
        mesh = init_device_mesh("cpu", (hosts, each), mesh_dim_names=("data", "tensor"))
        ways = {"query": ColwiseParallel, "key": ColwiseParallel, "value": ColwiseParallel, "gate": ColwiseParallel,
                "up": ColwiseParallel, "out": RowwiseParallel, "down": RowwiseParallel}  # fmt: skip
        for module in list(model.modules()):
            table = {n: ways[n]() for n, child in module.named_children() if n in ways and isinstance(child, torch.nn.Linear)}
            if table:
                parallelize_module(module, mesh["tensor"], table)
            for name in ("heads", "groups"):
                if hasattr(module, name):
                    setattr(module, name, getattr(module, name) // each)
        if not any(isinstance(p.data, torch.distributed.tensor.DTensor) for p in model.parameters()):
            raise ValueError("nothing in the model that tensor parallelism by hand would cut")
        share, part, copies = hosts, rank // each, mesh.get_group("data")
    optimizer = torch.optim.AdamW(model.parameters(), RATE, foreach=False)

    def step(*batch):
        mine = [value.chunk(share)[part] for value in batch]
        found = loss(model(*mine[:-1]), mine[-1])
        found.backward()
        if copies is not None:
            for parameter in model.parameters():
                grad = parameter.grad
                local = grad.to_local() if hasattr(grad, "to_local") else grad
                dist.all_reduce(local, group=copies)
                local /= share
        total = found.detach().clone()
        dist.all_reduce(total)
        return total / size

    def clip():
        found = torch.zeros(())
        for parameter in model.parameters():
            grad = parameter.grad
            norm = torch.linalg.vector_norm(grad)
            found += (norm.full_tensor() if hasattr(norm, "full_tensor") else norm) ** 2
        found = found.sqrt()
        for parameter in model.parameters():
            grad = parameter.grad
            (grad.to_local() if hasattr(grad, "to_local") else grad).mul_(torch.clamp(max_norm / (found + 1e-6), max=1.0))
        return found

    return Training(step, clip, optimizer, batches)


def written(entry):
    return entry if isinstance(entry, str) else "x".join(map(str, entry[:3])) + "-" + entry[3]


def plan_file(output, model, entry):
    return f"{output}.{model}-{entry}.plan.json"


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def left_of(given):
    """The pairs that have no row yet, of plans for as many ranks as there are."""
    done = {(row["model"], row["plan"]) for row in read(given.output)}
    fit = [entry for entry in PLANS if math.prod(entry[:3]) == given.hosts * given.each]
    return [(name, entry) for name in given.models.split(",") for entry in [*fit, *BY_TORCH]
            if (name, written(entry)) not in done and any(part in written(entry) for part in given.plans.split(","))]  # fmt: skip


def references(given):
    """What one process finds, kept beside the CSV: made once, before the ranks begin."""
    cases, path = models(), given.output + ".alone.json"
    import torch
    import training_case

    torch.set_num_threads(1)  # several would wait for each other where the machine has other work

    found = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    for name in dict.fromkeys(name for name, _ in left_of(given)):
        if name not in found:
            make, loss, batches = cases[name]
            found[name] = training_case.alone(make, loss, batches(STEPS, given.batch), given.micro_batches, RATE)[:2]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)


def train_by_turns(given, name, entries, parts, case, batches, profile, expected):
    """The rows of a model's plans, which all ranks train a few steps at a time; devices have one of so many parts of a
    micro-batch."""
    import torch.distributed as dist
    import training_case

    rows = {written(entry): {"model": name, "plan": written(entry)} for entry in entries}
    running = {}
    alone, once = by_one_device(case, batches[0], parts, given.micro_batches, profile)

    def tried(plan, what):
        try:
            return what()
        except (ValueError, RuntimeError, NotImplementedError, TypeError) as error:
            rows[plan]["note"] = str(error).splitlines()[0][:160]
            print(f"rank {dist.get_rank()}: {name} {plan}: {error!r}", file=sys.stderr, flush=True)
            if plan in running:
                running.pop(plan).close()  # the other ranks' step ends by that
            return None

    for entry in entries:
        plan, train = written(entry), (case, batches, training_case.MAX_NORM)
        make = (
            functools.partial(by_torch, entry, *train) if isinstance(entry, str)
            else functools.partial(by_plan, entry, given.micro_batches, profile, plan_file(given.output, name, plan), *train,
                                   given.same_stages)
        )  # fmt: skip
        made = tried(plan, make)
        if made is not None:
            running[plan] = made
    for _ in range(ROUNDS):
        for plan, training in list(running.items()):
            alone.go_on(2)
            tried(plan, functools.partial(training.go_on, STEPS // ROUNDS))
    pace = alone.found()[0] / once if running else math.nan
    alone.close()
    for plan, training in running.items():
        seconds, losses, norms = training.found()
        errors = distance(losses, expected[0]), distance(norms, expected[1])
        rows[plan] |= {"measured_s": f"{seconds:.6g}", "pace": f"{pace:.3f}", "loss_error": f"{errors[0]:.2e}",
                       "norm_error": f"{errors[1]:.2e}", "equal": max(errors) <= 1e-4}  # fmt: skip
        if plan not in BY_TORCH and dist.get_rank() == 0:
            rows[plan]["predicted_s"] = f"{predicted_at(pace, plan_file(given.output, name, plan)):.6g}"
        training.close()
    return list(rows.values())


def write(path, rows):
    new = not os.path.exists(path)
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(json.dumps(row), flush=True)


def rank_main(given):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # Llama's gradients come to have such, on which Intel's processors take 5 times as long
    dist.init_process_group("gloo")
    cases = models()
    from crossmesh.torch import probe, shutdown

    export_once()

    with open(given.output + ".alone.json", encoding="utf-8") as file:
        expected = json.load(file)
    dist.barrier()
    for name, entries in itertools.groupby(left_of(given)[: given.pairs], lambda pair: pair[0]):
        go = torch.tensor([time.time() < given.until])
        dist.broadcast(go, 0)
        if not go.item():
            break
        case = cases[name]
        batches = list(case[2](STEPS, given.batch))
        how = {"max_bytes": 1 << 20, "seconds": 0.03}
        *args, target = batches[0]
        rates = probe(given.cluster, dtypes=(torch.float32, torch.float64), **how)
        turns = {}
        for _, entry in entries:
            turns.setdefault("" if isinstance(entry, str) or entry[0] == 1 else entry[:3], []).append(entry)
        for shape, some in turns.items():
            parts = math.prod(shape[1:]) if shape else max(1, given.hosts * given.each // given.micro_batches)
            profile = probe(rates, **how, model=case[0](), example_args=args, loss=case[1], target=target,
                            micro_batches=given.micro_batches, afresh=False)  # fmt: skip
            rows = train_by_turns(given, name, some, parts, case, batches, profile, expected[name])
            if dist.get_rank() == 0:
                write(given.output, rows)
    shutdown()
    dist.destroy_process_group()


# --- The cluster ------------------------------------------------------------------------------------------------------


def start(given, command, port, seconds):
    """The command on all ranks, each on its host; the worst status."""
    processes = []
    for rank in range(given.hosts * given.each):
        there = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank % given.each), "WORLD_SIZE": str(given.hosts * given.each),
            "LOCAL_WORLD_SIZE": str(given.each), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "nic0", "XM_TIMEOUT": "300", "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": SOURCES,
        }  # fmt: skip
        words = [f"{given.build}/bench/emulated-cluster", "exec", "--name", NAME, str(rank // given.each), *command]
        quiet = None if rank == 0 else subprocess.DEVNULL
        # As many ranks on each, so that no core has more shares than it has, and of those that make a pipeline not all on one:
        # cores differ for some tenths of a second, and a step would wait for the slower one's.
        core = {(rank + rank // given.each) % os.cpu_count()}
        processes.append(subprocess.Popen(words, env=there, stdout=quiet, stderr=None if given.verbose else quiet,
                                          preexec_fn=lambda core=core: os.sched_setaffinity(0, core)))  # fmt: skip
    ends = time.time() + seconds
    try:
        return max(abs(process.wait(max(1, ends - time.time()))) for process in processes)
    except subprocess.TimeoutExpired:
        print(f"not done after {seconds:.0f} s: ended", file=sys.stderr)
        return 1
    finally:
        for process in processes:
            process.kill()
            process.wait()


def launch(given):
    tool = f"{given.build}/bench/emulated-cluster"
    os.environ["CROSSMESH_LIBRARY"] = os.path.join(given.build, "libcrossmesh.so")
    references(given)
    subprocess.run([tool, "up", "--name", NAME, "--hosts", str(given.hosts), "--nic", given.nic, "--core-share", str(given.share)],
                   check=True)  # fmt: skip
    try:
        cluster = given.output + ".cluster.json"
        if not os.path.exists(cluster):
            probe = [f"{given.build}/planner/cli/autopar", "probe", "--budget", "30", "--max-bytes", "1MiB", "-o", cluster]
            if start(given, probe, 29511, 180) != 0:
                return 1
        until = time.time() + given.budget
        words = [sys.executable, os.path.abspath(__file__), "--rank", "--cluster", cluster, "--until", str(until), "-o",
                 given.output, "--pairs", str(given.pairs), "--models", given.models, "--plans", given.plans,
                 "--micro-batches", str(given.micro_batches), "--batch", str(given.batch), "--hosts", str(given.hosts),
                 "--each", str(given.each), *(["--same-stages"] if given.same_stages else [])]  # fmt: skip
        return start(given, words, 29512, given.budget + 300)
    finally:
        subprocess.run([tool, "down", "--name", NAME], check=False)


# --- The report -------------------------------------------------------------------------------------------------------


def spearman(pairs):
    sys.path.insert(0, os.path.join(HERE, "evaluation"))
    from pipeline import spearman as of_lists

    return of_lists(*map(list, zip(*pairs))) if len(pairs) > 2 else float("nan")


def judged(path, build, rows):
    """Predictions of `autopar judge`: with what the runtime adds as the other rows say."""
    document = {"format": "crossmesh-measured", "version": 1, "source": "bench/training_campaign.py", "rows": [
        {"name": f"{row['model']} {row['plan']}", "plan": os.path.basename(plan_file(path, row["model"], row["plan"])),
         "step_s": float(row["measured_s"])} for row in rows]}  # fmt: skip
    with open(path + ".measured.json", "w", encoding="utf-8") as file:
        json.dump(document, file)
    found = subprocess.run([f"{build}/planner/cli/autopar", "judge", "--json", path + ".measured.json"], check=True,
                           stdout=subprocess.PIPE)  # fmt: skip
    return [row["step_s"] for row in json.loads(found.stdout)["rows"]]


def errors_of(pairs):
    errors = [p / m - 1 for p, m in pairs]
    return f"error {100 * statistics.median(errors):+.1f} % in the middle, of the absolute ones " \
           f"{100 * statistics.median(map(abs, errors)):.1f} %, worst {100 * max(errors, key=abs):+.1f} %; Spearman {spearman(pairs):.3f}"  # fmt: skip


def report(path, build):
    rows = [row for row in read(path) if row["measured_s"]]
    ours = [row for row in rows if row["predicted_s"]]
    if not ours:
        print("no pair was measured")
        return
    measured = [float(row["measured_s"]) for row in ours]
    priced = [float(row["predicted_s"]) for row in ours]
    fitted = judged(path, build, ours)
    print(f"{len(ours)} pairs, {sum(row['equal'] == 'True' for row in rows)} of {len(rows)} rows equal to one process")
    print("as priced:", errors_of(list(zip(priced, measured))))
    print("with the runtime of the other rows:", errors_of(list(zip(fitted, measured))))
    for name in dict.fromkeys(row["model"] for row in ours):
        here = {row["plan"]: (p, m) for row, p, m in zip(ours, fitted, measured) if row["model"] == name}
        pick, best = min(here, key=lambda n: here[n][0]), min(here, key=lambda n: here[n][1])
        text = f"{name}: Spearman {spearman(list(here.values())):.3f}; pick {pick} {here[pick][1]:.3f} s, best {best} " \
               f"{here[best][1]:.3f} s ({100 * (here[pick][1] / here[best][1] - 1):+.1f} %)"  # fmt: skip
        for row in rows:
            if row["model"] == name and not row["predicted_s"]:
                text += f"; {row['plan']} {float(row['measured_s']):.3f} s"
        for plain, eager in ((n, n.replace("1f1b", "eager-1f1b")) for n in here if n.endswith("-1f1b")):
            if eager in here and eager != plain and "eager" not in plain:
                gains = [100 * (1 - here[eager][k] / here[plain][k]) for k in (0, 1)]
                text += f"; {eager} gains {gains[0]:.1f} % predicted, {gains[1]:.1f} % measured"
        print(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--build", default=os.path.join(HERE, "..", "build", "release"), type=os.path.abspath)
    parser.add_argument("-o", "--output", default="campaign.csv", type=os.path.abspath)
    parser.add_argument("--models", default="gpt,llama,unet,t5,moe")
    parser.add_argument("--plans", default="", help="only those with one of these, as in 1f1b,ddp, in their names")
    parser.add_argument("--pairs", type=int, default=1000, help="at most so many more")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--each", type=int, default=2, help="ranks of a host")
    parser.add_argument("--same-stages", action="store_true", help="1f1b has those of eager-1f1b, not its own best ones")
    parser.add_argument("--budget", type=float, default=720, help="seconds after which no model is begun")
    parser.add_argument("--share", type=float, default=0.2, help="of a core, for each rank")
    parser.add_argument("--nic", default="1gbit")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="what all ranks say")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        return rank_main(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes then, too
    if given.report:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads it may have seen enough
    status = 0 if given.report else launch(given)
    report(given.output, given.build)
    return status


if __name__ == "__main__":
    sys.exit(main())
