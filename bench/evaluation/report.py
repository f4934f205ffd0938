#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tables, figures and goals of the documents that evaluate.py left in a directory.

    report.py OUTPUT [DOCS]

Prints the tables, writes OUTPUT/report.md and the figures OUTPUT/img/*.svg; with DOCS also the part
of DOCS/results.md between its two marks and DOCS/img. Experiments without documents are left out.
"""

import os
import re
import shutil
import sys
import textwrap

import tables
from documents import BadDocument, Documents

BEGIN, END = "<!-- paper: begin -->", "<!-- paper: end -->"


def draw(documents, folder):
    """The names of the figures that were drawn; without matplotlib none, with the reason."""
    try:
        import figures  # needs matplotlib, which the tables do not
    except ImportError as error:
        print(f"report: no figures: {error} (package python3-matplotlib)", file=sys.stderr)
        return []
    os.makedirs(folder, exist_ok=True)
    return figures.draw(documents, folder)


def wrap(text, width=120):
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def plain(text):
    """A paragraph for the terminal: links are their words."""
    return wrap(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text), 110)


def terminal(introduction, sections):
    parts = [plain(text) for text in introduction]
    for section in sections:
        parts += [f"== {section.title}", plain(section.text)]
        parts += [table.terminal() for table in section.tables]
    return "\n\n".join(parts) + "\n"


def markdown(introduction, sections, drawn):
    parts = [wrap(text) for text in introduction]
    for section in sections:
        parts += [f"### {section.title}", wrap(section.text)]
        parts += [f"![{caption}](img/{name}.svg)" for name, caption in section.figures.items()
                  if name in drawn]
        parts += [table.markdown() for table in section.tables]
    return "\n\n".join(parts) + "\n"


def replace_between_marks(path, text):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise BadDocument(f"{path} has no part between '{BEGIN}' and '{END}'")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def write(output, docs=None):
    """See above; `docs` is None when the documentation stays as it is."""
    documents = Documents(output)
    sections = tables.sections(documents)
    if not sections:
        raise BadDocument(f"{output} has no documents")
    introduction = tables.introduction(documents)
    drawn = draw(documents, os.path.join(output, "img"))
    text = markdown(introduction, sections, drawn)
    with open(os.path.join(output, "report.md"), "w", encoding="utf-8") as file:
        file.write("## On an emulated cluster\n\n" + text)
    if docs is not None:
        replace_between_marks(os.path.join(docs, "results.md"), text)
        os.makedirs(os.path.join(docs, "img"), exist_ok=True)
        for name in drawn:
            shutil.copyfile(os.path.join(output, "img", f"{name}.svg"),
                            os.path.join(docs, "img", f"{name}.svg"))
    print(terminal(introduction, sections), end="", flush=True)


def main():
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr if "--help" not in arguments else sys.stdout)
        return 0 if "--help" in arguments else 2
    try:
        write(*arguments)
    except (BadDocument, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
