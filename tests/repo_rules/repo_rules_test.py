"""Runs the rules of rules.py on this repository, and proves of each rule that it can fail.

Needs nothing but an interpreter. KVC_LIBRARY names the built library, whose symbols are checked.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from rules import RULES, Tree, cpp_functions

ROOT = Path(__file__).resolve().parents[2]

# A small repository that breaks no rule.
GOOD = {
    "CMakeLists.txt": "project(kvc VERSION 0.1.0)\n",
    "pyproject.toml": 'version = "0.1.0"\n',
    "LICENSE": "x" * 200 + "\n",
    "README.md": "[formats](docs/dependencies.md#top) and [web](https://example.org/x)\n",
    "docs/dependencies.md": "`cmake` builds, `numpy` counts\n",
    "docs/contract/store.md": "`Memory.PutsOnce`, `tests/python/test_a.py::test_it`\n",
    "scripts/apt-packages.txt": "# comment\ncmake\n",
    "scripts/pip-packages.txt": "numpy==1.0\n",
    "docs/requirements.txt": "",
    "include/kvc/a.h": '#pragma once\n#include <string>\n#include "kvc/b.h"\n',
    "include/kvc/b.h": "#pragma once\n// in memory, and thrown away\n",
    "src/base/mutex.h": "#pragma once\nstd::mutex m;\n",
    "src/os/clock.cc": "#include <unistd.h>\nauto t = std::chrono::steady_clock::now();\n",
    "src/os/CMakeLists.txt": "kvc_sources(clock.cc)\n",
    "src/store/memory/CMakeLists.txt": "kvc_sources(a.cc)\nkvc_test(t SOURCES a_test.cc)\n",
    "src/store/memory/memory_store.h": "#pragma once\n",
    "src/store/memory/a.cc": '#include "base/mutex.h"\n#include "store/memory/memory_store.h"\n'
    "// std::thread and getenv in a comment\nstd::filesystem::path p;\nint a = 1'000'000;\n",
    "src/store/memory/a_test.cc": '#include "store/memory/memory_store.h"\n'
    "bool b = register_store_conformance({});\nTEST(Memory, PutsOnce) {}\n",
    "tests/python/test_a.py": "import random\n\n\ndef test_it():\n    random.Random(7).random()\n",
}

LONG_BODY = "".join(f"  x = {n};\n" for n in range(70))
LONG_CPP = f"namespace kvc {{\nA::A(int x) : a_{{x}}, b_(x) {{\n{LONG_BODY}}}\n}}\n"
LONG_PYTHON = "def f():\n" + "    x = 1\n" * 70
LISTS = {"src/base/CMakeLists.txt": "kvc_sources(a.cc b_test.cc)\n"}

# For each rule, changes of GOOD of which each alone must break it. None removes a file.
BAD: dict[str, list[dict[str, str | None]]] = {
    "file_length": [
        {"include/kvc/b.h": "#pragma once\n" * 401},
        {"src/os/clock.cc": "\n" * 801},
        {"tests/python/test_a.py": "\n" * 601},
    ],
    "line_length": [{"src/os/clock.cc": "x" * 101 + "\n"}, {"Makefile": "x" * 101 + "\n"}],
    "function_length": [
        {"src/base/a.cc": LONG_CPP},
        {"src/base/a.cc": LONG_CPP.replace("A::A(int x) : a_{x}, b_(x)", "TEST(A, B)")},
        {"src/base/a.cc": LONG_CPP.replace("A::A(int x) : a_{x}, b_(x)", "struct S {\nint f()")},
        {"tests/python/test_a.py": LONG_PYTHON},
    ],
    "seams": [
        {"src/base/a.cc": "#include <unistd.h>\n"},
        {"src/base/a.cc": "#include <sys/mman.h>\n"},
        {"src/base/a.cc": "auto t = std::chrono::system_clock::now();\n"},
        {"src/base/a.cc": "std::thread t;\n"},
        {"src/base/a.cc": "std::random_device d;\n"},
        {"src/base/b_test.cc": "std::uniform_int_distribution<int> d;\n"},
        {"src/base/b_test.cc": "std::this_thread::sleep_for(1s);\n"},
        {"testing/a.h": "#pragma once\n::usleep(5);\n"},
        {"src/base/a.cc": "#include <fstream>\n"},
        {"src/base/a.cc": "int fd = ::open(path, 0);\n"},
        {"bindings/a.cc": 'getenv("X");\n'},
        {"src/base/a.cc": "std::filesystem::exists(p);\n"},
    ],
    "locks": [{"src/base/a.cc": "std::mutex m;\n"}, {"testing/a.h": "std::lock_guard l(m);\n"}],
    "python_tests_wait_and_draw": [
        {"tests/python/test_a.py": "time.sleep(1)\n"},
        {"tests/python/test_a.py": "from time import monotonic, sleep\n"},
        {"tests/python/test_a.py": "x = random.randint(1, 2)\n"},
        {"tests/python/test_a.py": "x = random.Random()\n"},
        {"tests/python/test_a.py": "x = np.random.rand(3)\n"},
        {"tests/python/test_a.py": "x = np.random.default_rng()\n"},
        {"tests/python/test_a.py": "x = os.urandom(3)\n"},
    ],
    "include_direction": [
        {"src/base/a.cc": '#include "os/clock.h"\n', "src/os/clock.h": "#pragma once\n"},
        {"src/commit/a.cc": '#include "os/clock.h"\n', "src/os/clock.h": "#pragma once\n"},
        {"src/connector/a.cc": '#include "store/memory/memory_store.h"\n'},
        {
            "src/connector/a.cc": '#include "channel/frame.h"\n',
            "src/channel/frame.h": "#pragma once\n",
        },
        {
            "src/channel/a.cc": '#include "connector/stager.h"\n',
            "src/connector/stager.h": "#pragma once\n",
        },
        {"src/channel/a.cc": '#include "store/memory/memory_store.h"\n'},
        {"src/store/a.cc": '#include "store/memory/memory_store.h"\n'},
        {"src/store/wrap/a.cc": '#include "store/memory/memory_store.h"\n'},
        {"src/base/a.cc": '#include "testing/seed.h"\n'},
        {"src/base/a.cc": '#include "base/a_fixture.h"\n'},
        {"src/base/a.cc": '#include "mutex.h"\n'},
        {"src/attic/a.cc": "\n"},
    ],
    "public_headers": [
        {"include/kvc/b.h": "#pragma once\n#include <openssl/evp.h>\n"},
        {"include/kvc/b.h": '#pragma once\n#include "base/mutex.h"\n'},
        {"include/kvc/b.h": "#pragma once\nvoid f() { throw 1; }\n"},
        {"include/kvc/b.h": "int a;\n"},
    ],
    "names_in_the_core": [
        {"include/kvc/b.h": "#pragma once\n// as Mooncake does\n"},
        {"include/kvc/b.h": "#pragma once\nclass MemoryStore;\n"},
        {"src/base/a.cc": "// TensorRT\n"},
        {"src/base/a.cc": "torch::Tensor t;\n"},
        {"src/base/a.cc": "PyObject* o;\n"},
        {"src/base/a.cc": "// called from Python\n"},
    ],
    "library_symbols": [{"symbols": "                 U PyErr_Occurred\n"}],
    "mooncake_package": [{"python/mooncake/__init__.py": ""}],
    "registered_sources": [
        {"src/base/lost_test.cc": "\n"},
        {"src/os/CMakeLists.txt": "# kvc_sources(clock.cc)\n"},
        {"src/os/CMakeLists.txt": "kvc_sources(old_clock.cc)\n"},
        {"src/os/CMakeLists.txt": None},
    ],
    "no_skipped_tests": [
        {"src/store/memory/a_test.cc": "TEST(A, B) { GTEST_SKIP(); }\n"},
        {"src/store/memory/a_test.cc": "TEST(A, DISABLED_B) {}\n"},
        {"tests/python/test_a.py": "@pytest.mark.skipif(True)\n"},
        {"tests/python/test_a.py": "pytest.skip('x')\n"},
    ],
    "contracts_name_tests": [
        {"docs/contract/store.md": "`Memory.PutsTwice`\n"},
        {"docs/contract/store.md": "`tests/python/test_a.py::test_other`\n"},
        {"docs/contract/store.md": "`tests/python/test_b.py::test_it`\n"},
        {"docs/contract/store.md": "It always works.\n"},
        {"src/store/memory/a_test.cc": "// TEST(Memory, PutsOnce) {}\n"},
    ],
    "conformance": [
        {"src/store/memory/a_test.cc": '#include "store/memory/memory_store.h"\n'},
        {"src/store/wrap/deadline_store.h": "#pragma once\n"},
        {"src/store/file/file.h": "#pragma once\n"},
    ],
    "leftovers": [
        {"src/os/clock.cc": "// TO" + "DO: later\n"},
        {"docs/dependencies.md": "`cmake` `numpy` FIX" + "ME\n"},
        {"scripts/setup": "cd /wo" + "rk/main\n"},
    ],
    "links": [{"README.md": "[gone](docs/gone.md)\n"}],
    "one_version": [{"pyproject.toml": 'version = "0.2.0"\n'}],
    "dependencies_explained": [
        {"scripts/apt-packages.txt": "cmake\nclang\n"},
        {"scripts/pip-packages.txt": "numpy==1.0\npytest==1.0\n"},
        {"docs/requirements.txt": "sphinx==1.0\n"},
    ],
}


def violations(name: str, changes: dict[str, str | None]) -> list[str]:
    """Return what a rule says of GOOD with some files changed."""
    files: dict[str, str | None] = {**GOOD, **LISTS, "src/base/a.cc": "", "src/base/b_test.cc": ""}
    files |= changes
    symbols = files.pop("symbols", "") or ""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            if text is not None:
                target = Path(folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
        return list(RULES[name](Tree(Path(folder), symbols)))


def undefined_symbols() -> str:
    """Return the undefined symbols of the built library, empty where none was named."""
    library = os.environ.get("KVC_LIBRARY", "")
    if not library:
        return ""
    command = ["nm", "--undefined-only", library]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class SelfTest(unittest.TestCase):
    """The rules themselves."""

    def test_every_rule_has_a_case_that_breaks_it(self) -> None:
        assert set(BAD) == set(RULES)

    def test_each_bad_case_is_found(self) -> None:
        for name, cases in BAD.items():
            for number, changes in enumerate(cases):
                with self.subTest(rule=name, case=number):
                    assert violations(name, changes) != []

    def test_the_good_repository_breaks_nothing(self) -> None:
        for name in RULES:
            with self.subTest(rule=name):
                assert violations(name, {}) == []

    def test_function_lines_are_counted_through_the_forms_that_bodies_take(self) -> None:
        code = (
            "struct S {\n  int a{3};\n  S() : a{1} {\n  }\n};\n"
            "#define M(x) {\\\n {\nint f() const {\n  if (x) {\n  }\n  return S{1};\n}\n"
            "constexpr int k[] = {1,\n 2};\nauto g() -> std::vector<int> {\n}\n"
        )
        assert list(cpp_functions(code)) == [(3, 4), (8, 12), (15, 16)]


class RepositoryTest(unittest.TestCase):
    """The repository."""

    def test_rules(self) -> None:
        tree = Tree(ROOT, undefined_symbols())
        assert tree.paths((".cc",), "src"), "no sources found: wrong folder?"
        for name, rule in RULES.items():
            with self.subTest(rule=name):
                found = list(rule(tree))
                if found:
                    self.fail("\n".join([f"{name}: {rule.__doc__}", *found]))


if __name__ == "__main__":
    unittest.main()
