#!/usr/bin/env python3
"""Compiles every public header alone, and every piece of code in its comments.

    test_headers.py INCLUDE_DIR GENERATED_DIR

By $CC and $CLANG as C11 without extensions, by $CXX as C++17. Code is what stands between @code and @endcode, with the
library's umbrella header and the usual ones of C before it. More than half of each library's header lines are comments.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

INCLUDE, GENERATED = sys.argv.pop(1), sys.argv.pop(1)
LIBRARIES = [name for name in ("crossmesh", "autopar") if os.path.isdir(f"{INCLUDE}/{name}")]
WARNINGS = ["-pedantic-errors", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-Wno-unused-function", "-fsyntax-only"]
COMPILERS = [[os.environ.get(name), language, standard]
             for name, language, standard in (("CC", "c", "c11"), ("CLANG", "c", "c11"), ("CXX", "c++", "c++17"))
             if os.path.exists(os.environ.get(name, "") or "-")]  # fmt: skip
USUAL = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"


def headers(library):
    """Paths as users write them."""
    found = [f"{library}.h"]
    for folder in (INCLUDE, GENERATED):
        found += [os.path.relpath(path, folder) for path in glob.glob(f"{folder}/{library}/*.h")]
    return sorted(found)


def read(header):
    path = next(f"{f}/{header}" for f in (INCLUDE, GENERATED) if os.path.exists(f"{f}/{header}"))
    with open(path) as file:
        return file.read()


def compile_it(text):
    """What the compilers say against it."""
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for compiler, language, standard in COMPILERS:
            path = os.path.join(folder, "test.c" if language == "c" else "test.cc")
            with open(path, "w") as file:
                file.write(text)
            command = [compiler, "-x", language, f"-std={standard}", *WARNINGS, f"-I{INCLUDE}", f"-I{GENERATED}", path]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                said.append(f"{' '.join(command[:4])}:\n{result.stderr}")
    return "\n".join(said)


def snippets(text):
    for code in re.findall(r"^ *\* @code\n(.*?)^ *\* @endcode", text, re.S | re.M):
        yield re.sub(r"^ ?\*(?:     )?", "", code, flags=re.M)


class Headers(unittest.TestCase):
    def test_there_are_three_compilers(self):
        self.assertEqual(len(COMPILERS), 3, COMPILERS)

    def test_each_header_compiles_alone(self):
        for library in LIBRARIES:
            for header in headers(library):
                self.assertEqual(compile_it(f"#include <{header}>\nextern int something;\n"), "", header)

    def test_code_in_comments_compiles(self):
        for library in LIBRARIES:
            count = 0
            for header in headers(library):
                for code in snippets(read(header)):
                    count += 1
                    text = f"{USUAL}#include <{library}.h>\n{code}"
                    text = re.sub(r"^(?=[a-z]\w* [*\w ]*\()", "static ", text, flags=re.M)
                    self.assertEqual(compile_it(text), "", f"{header}:\n{code}")
            self.assertGreater(count, 5, library)

    def test_headers_read_like_a_manual(self):
        for library in LIBRARIES:
            lines = comments = 0
            for header in headers(library):
                within = False
                for line in read(header).splitlines():
                    lines += line.strip() != ""
                    comments += within or "/*" in line
                    within = (within or "/*" in line) and "*/" not in line
            self.assertGreater(comments / lines, 0.5, library)

    def test_a_mistake_would_be_found(self):
        self.assertIn("xm_nothing_t", compile_it("#include <crossmesh.h>\nextern xm_nothing_t *nothing;\n"))


if __name__ == "__main__":
    sys.exit(unittest.main())
