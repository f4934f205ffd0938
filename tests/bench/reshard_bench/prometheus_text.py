# SPDX-License-Identifier: Apache-2.0
"""The text format of Prometheus, version 0.0.4, read strictly: what its own parsers would refuse or misread is an error."""
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
VALUE = r'"((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}={VALUE}(?:,{LABEL}={VALUE})*)\}})? (-?[0-9]+(?:\.[0-9]+)?|NaN|[+-]Inf)")
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")


class Malformed(Exception):
    """The text is not what it should be."""


def unescape(value):
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), value)


def parse_labels(text, line):
    labels = {}
    for name, value in re.findall(rf"({LABEL})={VALUE}", text or ""):
        if name in labels:
            raise Malformed(f"label {name} twice: {line}")
        if name.startswith("__"):
            raise Malformed(f"reserved label {name}: {line}")
        labels[name] = unescape(value)
    return labels


def parse(text):
    """Families by name: {"type", "help", "samples": {frozenset of labels: value}}. Conventions of names are checked as well."""
    families, current = {}, None
    if not text.endswith("\n"):
        raise Malformed("the last line does not end")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            match = re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line)
            if not match or match[1] in families:
                raise Malformed(f"help: {line}")
            current = match[1]
            families[current] = {"type": None, "help": match[2], "samples": {}}
        elif line.startswith("# TYPE "):
            match = re.fullmatch(rf"# TYPE ({NAME}) (\w+)", line)
            if not match or match[1] != current or match[2] not in TYPES or families[current]["samples"] or \
                    families[current]["type"]:
                raise Malformed(f"type: {line}")
            families[current]["type"] = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            if not match or match[1] != current or families[current]["type"] is None:
                raise Malformed(f"sample: {line}")
            labels = frozenset(parse_labels(match[2], line).items())
            if labels in families[current]["samples"]:
                raise Malformed(f"the same sample twice: {line}")
            families[current]["samples"][labels] = float(match[len(match.groups())])
    for name, family in families.items():
        if (family["type"] == "counter") != name.endswith("_total"):
            raise Malformed(f"{name} is a {family['type']}")
        if family["type"] == "counter" and min(family["samples"].values(), default=0) < 0:
            raise Malformed(f"{name} is negative")
    return families


def total(families, name, **labels):
    """Sum of the samples that have these labels."""
    return sum(value for of, value in families[name]["samples"].items() if set(labels.items()) <= of)
