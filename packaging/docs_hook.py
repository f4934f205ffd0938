# SPDX-License-Identifier: Apache-2.0
"""What MkDocs needs besides docs/: pages that lie elsewhere in the repository, and links to its files, which are plain
words on the site. A link to what is not there is a warning, which ends the build."""

import logging
import os
import posixpath
import re

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.crossmesh")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Where they are on the site.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}
SOURCES = {page: name for name, page in PAGES.items()}


def on_files(files, config):
    for name, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=os.path.join(ROOT, name)))
    return files


def on_page_markdown(markdown, page, config, files):
    source = SOURCES.get(page.file.src_uri, "docs/" + page.file.src_uri)

    def link(found):
        text, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in PAGES:
            return f"[{text}]({PAGES[path]}{anchor})"
        if path.startswith("docs/") and files.get_file_from_path(path.removeprefix("docs/")):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})"
        if not os.path.exists(os.path.join(ROOT, path)):
            log.warning("%s: there is no %s", source, target)
        return text

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.S | re.M)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"(?<!!)\[([^]]+)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", link, parts[i])
        # A list may follow a paragraph at once, as elsewhere.
        parts[i] = re.sub(r"^(?!\s|[-*] |\d+\. |\||#)(.+)\n(?=(?:[-*]|\d+\.) )", r"\1\n\n", parts[i], flags=re.M)
    return "".join(parts)
