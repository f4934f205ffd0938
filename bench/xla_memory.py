#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The buffers of a module that XLA has compiled for CPU, and which of them only that backend needs.

XLA's own dumps are read: when each value is alive, and where in which allocation it lies. What is
found in another form than expected raises Unreadable. docs/xla-agreement.md says what is left out,
and why.
"""
import collections
import math
import re

from xla_collectives import ITEM_BYTES, Unreadable

MOVES = ("copy", "bitcast", "transpose", "reshape")
# The order that all backends know. By default this one orders breadth-first, for its threads.
FLAGS = ("--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED "
         "--xla_disable_hlo_passes=cpu-all-reduce-combiner,dot-library-rewriter")

Instruction = collections.namedtuple("Instruction", "name type opcode operands line")
Allocation = collections.namedtuple("Allocation", "bytes parameter values")
Value = collections.namedtuple("Value", "name begin end first last")  # bytes, and times


def instructions(text):
    """Computation -> name -> Instruction; the entry's name is None."""
    found, computation = {}, None
    for line in text.splitlines():
        start = re.match(r"(ENTRY )?%?([\w.-]+) .*\{$", line)
        made = re.match(r"\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)", line)
        if start and not line.startswith(" "):
            computation = None if start.group(1) else start.group(2)
            found[computation] = {}
        elif made and computation in found:
            name, kind, opcode, rest = made.groups()
            operands = re.findall(r"%?([A-Za-z_][\w.-]*)", re.sub(r"/\*.*?\*/", "",
                                                                  rest.split(")")[0]))
            inside = found[computation]
            inside[name] = Instruction(name, kind, opcode, [o for o in operands if o in inside],
                                       line)
    return found


def root_of(body):
    return next(name for name, made in body.items() if made.line.lstrip().startswith("ROOT"))


def readers_of(body):
    """How many instructions read each."""
    return collections.Counter(o for made in body.values() for o in set(made.operands))


def type_bytes(kind):
    return sum(ITEM_BYTES[item] * math.prod(int(n) for n in dims.split(",") if n)
               for item, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", kind)
               if item in ITEM_BYTES)


# The order of instructions.

def weights(body):
    """Per instruction how many readers it and all before it have beyond one each, and bytes."""
    readers = readers_of(body)
    extra, size, total = {}, {}, 0
    for name, made in body.items():
        if made.opcode in ("parameter", "constant"):
            extra[name] = size[name] = 0
            continue
        own = type_bytes(made.type)
        total += own
        extra[name] = min(len(body), max(0, readers[name] - 1) +
                          sum(extra[o] for o in set(made.operands)))
        size[name] = min(total, own + sum(size[o] for o in set(made.operands)))
    return extra, size


def depth_first(text):
    """HLO text with the instructions of its entry in the order of XLA's depth-first scheduler.

    That visits operands with many readers behind them first, then large ones.
    """
    lines = text.split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("ENTRY")) + 1
    end = next(i for i in range(begin, len(lines)) if lines[i].startswith("}"))
    body = instructions(text)[None]
    extra, size = weights(body)
    if len(body) != end - begin:
        raise Unreadable("an instruction of the entry is not on a line of its own")
    order, done = [], set()
    stack = [(root_of(body), False)]
    while stack:
        name, ready = stack.pop()
        if ready:
            order.append(name)
        elif name not in done:
            done.add(name)
            stack.append((name, True))
            stack += [(o, False) for o in sorted(
                body[name].operands, key=lambda o: (-extra[o], -size[o], o), reverse=True)]
    rest = [name for name in body if name not in done]
    return "\n".join(lines[:begin] + [body[name].line for name in order + rest] + lines[end:])


# Values that are the same as others.

def value_of(body, name):
    """The value that an instruction of a scheduled computation stands for, without its index."""
    made = body[name]
    if made.opcode == "bitcast":
        return value_of(body, made.operands[0])
    if made.opcode == "get-tuple-element":
        index = re.search(r"index=(\d+)", made.line).group(1)
        return f"{made.operands[0]}{{{index}}}"
    return name + "{}"


def computed(body, name, arguments):
    """What is computed, whatever the layout: an expression of `arguments`, or of constants."""
    made = body[name]
    if made.opcode == "parameter":
        return arguments[int(re.search(r"parameter\((\d+)\)", made.line).group(1))]
    if made.opcode in MOVES:
        return computed(body, made.operands[0], arguments)
    if made.opcode == "constant":
        return made.line.split(" constant(", 1)[1].split(")")[0]
    how = re.search(r"direction=\w+|to_apply=%?[\w.-]+", made.line)
    return (made.opcode, how.group(0) if how else "",
            *(computed(body, o, arguments) for o in made.operands))


def layout(kind):
    found = re.search(r"\]\{([\d,]*)", kind)
    return found and found.group(1)


def same_in(found, body, same):
    """Adds those of one computation to `same`, see same_values()."""
    first, readers = {}, readers_of(body)
    # What a loop or the caller takes must be a buffer of its own.
    taken = {o for made in body.values() if made.opcode == "tuple" for o in made.operands}
    convolved = {o for made in body.values() if made.opcode == "convolution" for o in made.operands}

    def source(name):
        value = value_of(body, name)
        while value in same:
            value = same[value]
        return value

    for name, made in body.items():
        of = body[made.operands[0]] if made.operands else None
        if name in taken or of is None or made.type.startswith("("):
            continue
        if (made.opcode == "copy" and (of.opcode == "parameter" or
                                       layout(made.type) != layout(of.type)) or
                made.opcode == "all-reduce" and readers[of.name] == 1):
            same[name + "{}"] = source(of.name)
        elif made.opcode == "fusion":
            called = found[re.search(r"calls=%?([\w.-]+)", made.line).group(1)]
            key = computed(called, root_of(called), [source(o) for o in made.operands])
            if isinstance(key, str):
                same[name + "{}"] = key
            elif name in convolved and key in first:
                same[name + "{}"] = first[key]
            else:
                first.setdefault(key, name + "{}")


def same_values(found):
    """Value -> the earlier one that it is but for its layout, or that is kept from being
    overwritten (an argument that is donated), or that it is the sum of over devices."""
    same = {}
    for body in found.values():
        same_in(found, body, same)
    return same


# Memory over time.

def allocations(buffers, times):
    """XLA's allocations with their values, from its two dumps."""
    live = {name: (int(first), int(last)) for name, first, last in
            re.findall(r"^\s+(\S+\{[\d,]*\}):(\d+)-(\d+)$", times, re.M)}
    made = []
    for block in re.split(r"^allocation ", buffers, flags=re.M)[1:]:
        head = block.split("\n", 1)[0]
        if "thread-local" in head or ", constant" in head:
            continue
        values = []
        for name, index, size, offset in re.findall(
                r"value: <\d+ ([^ {]+)(\{[\d,]*\})? @0> \(size=(\d+),offset=(\d+)\)", block):
            if name + (index or "{}") in live:
                values.append(Value(name + (index or "{}"), int(offset), int(offset) + int(size),
                                    *live[name + (index or "{}")]))
        made.append(Allocation(int(re.search(r"size (\d+)", head).group(1)),
                               ", parameter " in head, values))
    if not live or not made:
        raise Unreadable("the dump of XLA's buffers has no live ranges or no allocations")
    return made


def covered(parts):
    """Bytes of a union of intervals."""
    total = last = 0
    for begin, end in sorted(parts):
        total += max(0, end - max(begin, last))
        last = max(last, end)
    return total


def busiest(made, same):
    """The most bytes in use at once, arguments all the time, if values of `same` are no others."""
    until = {}
    for value in (v for a in made for v in a.values if v.name in same):
        until[same[value.name]] = max(until.get(same[value.name], -1), value.last)

    def used(allocation, now):
        values = [v for v in allocation.values if v.name not in same]
        parts = [(v.begin, v.end) for v in values if v.first <= now <= v.last]
        kept = [v for v in values if v.last < now <= until.get(v.name, -1)]
        if allocation.parameter:
            # What lies in an argument's place while a copy is read in its stead.
            held = any(v in kept for v in values[:1])
            return allocation.bytes + (covered(parts) if held else 0)
        return covered(parts) + sum(v.end - v.begin for v in kept)

    return max(sum(used(a, now) for a in made)
               for now in range(1 + max(v.last for a in made for v in a.values)))


def only_here(optimised, buffers, times):
    """By how much XLA's memory for CPU is more than without what only that backend needs."""
    made = allocations(buffers, times)
    return busiest(made, {}) - busiest(made, same_values(instructions(optimised)))
