#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The collectives of a module that XLA has compiled, and what they cost in Alpa's model.

A collective that is written in a way that is not understood here raises Unreadable: a guess would
pass for a measurement. docs/xla-agreement.md says what is counted.
"""
import collections
import itertools
import math
import re

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4,
              "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}
NAME = r"(?:ROOT )?%?([\w.-]+) = "


class Unreadable(Exception):
    """A line of the compiled module that cannot be counted."""


def computations(text):
    """Name -> instructions; the entry's name is None."""
    found, name = {}, None
    for line in text.splitlines():
        start = re.match(r"(ENTRY )?%?([\w.-]+) .*\{$", line)
        if start and not line.startswith(" "):
            name = None if start.group(1) else start.group(2)
            found[name] = []
        elif line.startswith(" ") and " = " in line:
            found[name].append(line.strip())
    return found


def trip_count(lines, line):
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
    if known:
        return int(known.group(1))
    condition = re.search(r"condition=%?([\w.-]+)", line).group(1)
    bounds = [int(n) for text in lines[condition]
              for n in re.findall(r"s32\[\] constant\((\d+)\)", text)]
    if not bounds:
        raise Unreadable(f"how often does this loop run? {line}")
    return max(bounds)


def runs(lines):
    """How often each computation runs in one call of the module."""
    total = collections.Counter()

    def visit(name, times):
        total[name] += times
        for line in lines[name]:
            called = re.findall(r"(?:body|to_apply|calls)=%?([\w.-]+)", line)
            called += re.findall(r"%?([\w.-]+)", "".join(
                re.findall(r"(?:branch_computations|called_computations)=\{([^}]*)\}", line)))
            for other in called:
                visit(other, times * (trip_count(lines, line) if " while(" in line else 1))

    visit(None, 1)
    return total


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def arranged(shape, order):
    """The numbers 0, 1, ... that fill `shape` row by row, read with its dimensions in `order`."""
    strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    return [sum(i * strides[d] for i, d in zip(at, order))
            for at in itertools.product(*(range(shape[d]) for d in order))]


def device_ids(text, count):
    """The devices of a mesh in the order of its axes: all, or "[2,4]T(1,0)", or a list."""
    if not text:
        return list(range(count))
    iota = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not iota:
        return [int(n) for n in text.split(",")]
    shape = numbers(iota.group(1))
    return arranged(shape, numbers(iota.group(2) or "") or range(len(shape)))


def mesh_groups(axes, ids, used):
    """The groups of devices that differ along axes of a mesh, some perhaps a part of an axis."""
    names, sizes = zip(*(re.fullmatch(r"\s*'?([\w.-]+)'?=(\d+)", axis).groups()
                         for axis in axes.split(",")))
    parts = {name: [(1, int(size), False)] for name, size in zip(names, sizes)}
    for name, before, size in re.findall(r"([\w.-]+)'?(?::\((\d+)\)(\d+))?'?\s*(?:,|$)",
                                         used.replace("'", "")):
        (_, whole, _), = parts[name]  # an axis of which two parts are named is not read
        before, size = (int(before), int(size)) if before else (1, whole)
        after = whole // (before * size)
        parts[name] = [(1, before, False), (1, size, True), (1, after, False)]
    flat = [part for name in names for part in parts[name]]
    shape = [size for _, size, _ in flat]
    order = sorted(range(len(flat)), key=lambda d: flat[d][2])
    size = math.prod(size for _, size, inside in flat if inside)
    ids = device_ids(ids, math.prod(shape))
    listed = [ids[place] for place in arranged(shape, order)]
    return [listed[i:i + size] for i in range(0, len(listed), size)]


def read_groups(line, devices):
    pairs = re.search(r"source_target_pairs=\{(\{.*?\})\}", line)
    if pairs:
        return [numbers(pair) for pair in re.findall(r"\{([\d,]+)\}", pairs.group(1))]
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", line)
    if listed:
        return ([numbers(group) for group in re.findall(r"\{([\d,]+)\}", listed.group(1))] or
                [list(range(devices))])
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?[,\s]", line + " ")
    if iota:
        (count, size), shape = numbers(iota.group(1)), numbers(iota.group(2))
        order = arranged(shape, numbers(iota.group(3) or "") or range(len(shape)))
        return [order[i * size:(i + 1) * size] for i in range(count)]
    mesh = re.search(r"replica_groups=mesh\[([^\]]+)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}", line)
    return mesh_groups(*mesh.groups()) if mesh else None


def groups_of(line, devices):
    """The replica groups of a collective as lists of devices, pairs for a permutation."""
    try:
        groups = read_groups(line, devices)
    except (ValueError, AttributeError, KeyError, IndexError) as error:
        raise Unreadable(f"what are the groups of this collective? {line}") from error
    members = sorted(itertools.chain(*groups or ()))
    if groups is None or "source_target_pairs" not in line and (
            members != list(range(devices)) or len({len(group) for group in groups}) != 1):
        raise Unreadable(f"what are the groups of this collective? {line}")
    return groups


def axes_of(groups, mesh):
    """The mesh axes along which the devices of a group differ."""
    places = list(itertools.product(*(range(n) for n in mesh)))
    return tuple(a for a in range(len(mesh))
                 if any(len({places[d][a] for d in group}) > 1 for group in groups))


def shapes_of(text):
    """Bytes of every array in a type."""
    return [ITEM_BYTES[kind] * math.prod(numbers(dims))
            for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", text) if kind in ITEM_BYTES]


def of_data(listed):
    """The instructions that depend on an argument; the others are constants to XLA."""
    depend = set()
    for line in listed:
        match = re.match(NAME + r".*? ([\w-]+)\((.*)", line)
        if match and (match.group(2) == "parameter" or
                      depend & set(re.findall(r"%([\w.-]+)", match.group(3)))):
            depend.add(match.group(1))
    return depend


def collective_of(line):
    """Kind and type of a collective; None for any other instruction."""
    match = re.match(NAME + r"(.*?) (" + "|".join(KINDS) + r")\(", line)
    if not match and re.search(r"\b(replica_groups|source_target_pairs)=", line):
        raise Unreadable(f"what does this collective do? {line}")
    return match and (match.group(3), match.group(2))


def performed(text, mesh):
    """(kind, axes) -> [count, bytes], as docs/xla-agreement.md defines them."""
    lines = computations(text)
    times = runs(lines)
    found = collections.defaultdict(lambda: [0, 0.0])
    for name, listed in lines.items():
        depend = of_data(listed)
        for line in listed:
            collective = collective_of(line)
            if (not collective or not times[name] or
                    re.match(NAME, line).group(1) not in depend):
                continue
            kind, groups = collective[0], groups_of(line, math.prod(mesh))
            axes, parts = axes_of(groups, mesh), shapes_of(collective[1])
            size = len(groups[0])
            if kind == "all-to-all":
                # Of a tuple each element goes to one device of the group, an array is cut along a
                # dimension; either way a device has `sum(parts)` bytes.
                parts = [sum(parts) * size]
            elif kind == "reduce-scatter":
                parts = [part * size for part in parts]
            if not axes:
                continue
            entry = found[kind.replace("collective-", ""), axes]
            entry[0] += len(parts) * times[name]
            entry[1] += sum(parts) * times[name]
    return found


def per_axis(found, mesh):
    """Collectives over several axes as what they amount to, axis by axis, the last one first."""
    made = collections.defaultdict(lambda: [0, 0.0])
    for (kind, axes), (count, size) in found.items():
        for axis in reversed(axes):
            entry = made[kind, axis]
            entry[0] += count
            entry[1] += size / (math.prod(mesh[a] for a in axes if a < axis)
                                if kind == "all-gather" else 1)
            if kind == "reduce-scatter":
                size /= mesh[axis]
    return made


def price(rows, mesh, alpha=(1, 1, 1), beta=(1, 0.1, 0.1)):
    """What collectives per axis cost with Alpa's constants."""
    total = 0.0
    for (kind, axis), (count, size) in rows.items():
        n = mesh[axis]
        part = {"all-gather": (n - 1) / n, "all-reduce": 2 * (n - 1) / n,
                "reduce-scatter": (n - 1) / n, "all-to-all": (n - 1) / n / n * n / 2,
                "permute": 1}[kind]
        total += count * alpha[axis] + beta[axis] * part * size
    return total
