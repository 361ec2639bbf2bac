"""The rules of the repository that a machine can check, one function each.

A rule takes a Tree and yields one message per violation, "path:line: what, and what to do". There
is no ignore list: exceptions are part of a rule, with their reason beside them. repo_rules_test.py
runs all rules and proves of each that it can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

HEADER_LINES, SOURCE_LINES, PYTHON_LINES, FUNCTION_LINES, COLUMNS = 400, 800, 600, 70, 100
SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__"}
CPP = (".h", ".cc")
TEXT = (*CPP, ".py", ".pyi", ".cmake", ".txt", ".md", ".toml", ".json", ".in", ".yaml", ".sh", "")

CPP_NOISE = re.compile(
    r'R"([^()\\\s]{0,16})\(.*?\)\1"'  # raw string
    r"|//[^\n]*|/\*.*?\*/"  # comments
    r'|"(?:\\.|[^"\\\n])*"'  # string
    r"|(?<![0-9a-fA-F])'(?:\\.[^'\n]*|[^'\\\n])'",  # character, not a digit separator
    re.DOTALL,
)

Rule = Callable[["Tree"], Iterator[str]]
RULES: dict[str, Rule] = {}


class Tree:
    """The files of a repository below `root`, and the symbols of its library where it was built."""

    def __init__(self, root: Path, symbols: str = "") -> None:
        """Read the list of files; `symbols` is what `nm --undefined-only` says of the library."""
        self.symbols = symbols
        self._root = root
        self._paths = sorted(
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_file() and not self._skipped(path.relative_to(root))
        )
        self.text = cache(self._text)
        self.code = cache(self._code)
        self.cmake_words = cache(self._cmake_words)

    @staticmethod
    def _skipped(path: Path) -> bool:
        return any(p in SKIPPED_FOLDERS or p.endswith((".egg-info", "_cache")) for p in path.parts)

    def paths(self, suffixes: tuple[str, ...], *folders: str) -> list[str]:
        """Return paths with one of the suffixes, below one of `folders` if any are given."""
        return [
            path
            for path in self._paths
            if PurePosixPath(path).suffix in suffixes
            and (not folders or path.startswith(tuple(folder + "/" for folder in folders)))
        ]

    def exists(self, path: str) -> bool:
        """Return whether a file or folder is there."""
        return (self._root / path).exists()

    def _text(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8")

    def _code(self, path: str) -> str:
        """Return C++ text with comments and literals blanked, line numbers kept."""

        def blank(match: re.Match[str]) -> str:
            token = match.group()
            return ('""' if token[0] in "\"'R" else " ") + "\n" * token.count("\n")

        return CPP_NOISE.sub(blank, self.text(path))

    def _cmake_words(self, folder: PurePosixPath) -> set[str]:
        """Return the words outside comments of one folder's CMakeLists.txt."""
        path = (folder / "CMakeLists.txt").as_posix()
        if not self.exists(path):
            return set()
        return set(re.findall(r"[^\s()\"]+", re.sub(r"#[^\n]*", "", self.text(path))))


def rule(function: Rule) -> Rule:
    """Register a rule under its own name."""
    RULES[function.__name__] = function
    return function


def is_test(path: str) -> bool:
    """Return whether a C++ file is only ever part of a test program."""
    name = PurePosixPath(path).stem
    return name.endswith(("_test", "_fixture")) or path.startswith(("testing/", "tests/"))


def matches(path: str, text: str, pattern: str, message: str) -> Iterator[str]:
    """Yield `message` for every match, with its place and words."""
    for match in re.finditer(pattern, text, re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: '{match.group().strip()}': {message}"


def includes(tree: Tree, path: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, target and whether it is quoted for each include of a file."""
    text = tree.text(path)
    for match in re.finditer(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', text, re.MULTILINE):
        yield text.count("\n", 0, match.start(2)) + 1, match.group(2), match.group(1) == '"'


# ---- lengths ---------------------------------------------------------------------------------


@rule
def file_length(tree: Tree) -> Iterator[str]:
    """Headers, sources and Python files have a bound."""
    limits = {".h": HEADER_LINES, ".cc": SOURCE_LINES, ".py": PYTHON_LINES}
    for path in tree.paths(tuple(limits)):
        lines, limit = tree.text(path).count("\n"), limits[PurePosixPath(path).suffix]
        if lines > limit:
            yield f"{path}:1: {lines} lines, at most {limit}: split it by concern"


@rule
def line_length(tree: Tree) -> Iterator[str]:
    """Lines have a bound; a line that holds a link may be longer."""
    for path in tree.paths((*CPP, ".py", ".pyi", ".cmake", ".toml", ".sh", "")):
        if PurePosixPath(path).name == "LICENSE":
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if len(line) > COLUMNS and "://" not in line:
                yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"


def cpp_functions(code: str) -> Iterator[tuple[int, int]]:
    """Yield first and last line of every function body's definition at namespace or class level.

    `head` is what stands before a brace since the last statement. Brace initialisers are told from
    bodies by the blank that clang-format puts before the latter.
    """
    directive = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
    code = directive.sub(lambda match: "\n" * match.group().count("\n"), code)
    stack: list[str] = []
    head, head_line, line, first = "", 1, 1, 1
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        if "function" in stack:
            if char == "{":
                stack.append("inner")
            elif char == "}" and stack.pop() == "function":
                yield first, line
                head = ""
        elif char == "{":
            kind = "scope"
            if re.match(r"[\w>]", code[index - 1]) or head.rstrip().endswith("="):
                kind = "initialiser"
            elif "(" in head and not re.match(r"\s*(?:extern|namespace)\b", head):
                kind, first = "function", head_line
            stack.append(kind)
            head = head if kind == "initialiser" else ""
        elif char == "}":
            head = head if stack and stack.pop() == "initialiser" else ""
        elif char == ";":
            head = ""
        else:
            head_line = line if not head.strip() else head_line
            head += char


@rule
def function_length(tree: Tree) -> Iterator[str]:
    """A function fits on a screen."""
    for path in tree.paths(CPP):
        for first, last in cpp_functions(tree.code(path)):
            if last - first + 1 > FUNCTION_LINES:
                yield f"{path}:{first}: function of {last - first + 1} lines, at most 70"
    for path in tree.paths((".py",)):
        for node in ast.walk(ast.parse(tree.text(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most 70"


# ---- seams -----------------------------------------------------------------------------------

SYSTEM_HEADERS = (
    r"^\s*#\s*include\s*<(?:unistd|fcntl|dlfcn|pthread|signal|csignal|poll|dirent|netdb|sched"
    r"|sys/\w+|arpa/\w+|netinet/\w+)(?:\.h)?>"
)
SEAMS_EVERYWHERE = {
    SYSTEM_HEADERS: "system calls live in src/os",
    r"\bstd::chrono::\w+_clock::now\b|\bclock_gettime\b|\bgettimeofday\b|\btime\((?:nullptr|0)\)": (
        "take a kvc::Clock"
    ),
    r"\bstd::(?:jthread|async|thread)\b(?!::(?:id|hardware_concurrency))|\bpthread_create\b": (
        "take a kvc::Executor, or start a kvc::Thread (os/thread.h)"
    ),
    r"\bstd::(?:random_device|\w+_distribution|mt19937\w*|default_random_engine)\b|\bs?rand\(": (
        "differs between libraries or runs: use the seeded generator of the tests"
    ),
    r"\b(?:std::this_thread::)?sleep_(?:for|until)\b|\b[un]?sleep\(|\bnanosleep\b": (
        "never sleep: wait for a condition with a deadline, or step an executor"
    ),
}
# Tests may write files and read where to put them.
SEAMS_IN_PRODUCT = {
    r"^\s*#\s*include\s*<fstream>|\bstd::filesystem::(?!path\b)\w+|\bfopen\(|(?<!\w)::open\(": (
        "files: os/file.h"
    ),
    r"\b(?:secure_)?getenv\b": "the environment is read once, at the edge, and handed in",
}


@rule
def seams(tree: Tree) -> Iterator[str]:
    """Only src/os talks to the system; everything else is handed a clock, executor or file."""
    for path in tree.paths(CPP, "include", "src", "testing", "tests", "bindings"):
        if path.startswith("src/os/"):
            continue
        bans = SEAMS_EVERYWHERE if is_test(path) else SEAMS_EVERYWHERE | SEAMS_IN_PRODUCT
        for pattern, message in bans.items():
            yield from matches(path, tree.code(path), pattern, message)


@rule
def locks(tree: Tree) -> Iterator[str]:
    """Locks are annotated, so that clang proves who holds them."""
    pattern = r"\bstd::(?:\w*mutex|lock_guard|unique_lock|scoped_lock|condition_variable\w*)\b"
    for path in tree.paths(CPP, "include", "src", "testing", "bindings"):
        if path != "src/base/mutex.h":  # the wrapper itself
            yield from matches(path, tree.code(path), pattern, "use kvc::Mutex (base/mutex.h)")


@rule
def python_tests_wait_and_draw(tree: Tree) -> Iterator[str]:
    """Python tests neither sleep nor draw numbers that cannot be drawn again."""
    sleeps = r"\b(?:time|asyncio)\.sleep\(|^from time import .*\bsleep\b"
    draws = (
        r"(?<!\.)\brandom\.(?!Random\(.)\w+\(|\brandom\.Random\(\)|\bos\.urandom\(|\bsecrets\.\w+\("
        r"|\bnp\.random\.(?!default_rng\(.|Generator\b)\w+|\bdefault_rng\(\)"
    )
    for path in tree.paths((".py",), "tests"):
        if path.startswith("tests/repo_rules/"):  # names what it bans
            continue
        yield from matches(path, tree.text(path), sleeps, "wait for a condition with a deadline")
        yield from matches(path, tree.text(path), draws, "draw from random.Random(seed)")


# ---- include directions ----------------------------------------------------------------------

LOW = {"base", "os", "settings", "keyspace", "format", "layout"}
ALLOWED_INCLUDES = {
    "base": {"base"},
    "os": {"base", "os"},
    "settings": {"base", "os", "settings"},
    "keyspace": {"base", "os", "keyspace"},  # model identity reads the model's files
    "format": {"base", "keyspace", "format"},
    "layout": {"base", "layout"},
    "device": {"base", "os", "layout", "device"},
    "store": {*LOW, "store"},
    "commit": {"base", "keyspace", "format", "layout", "store", "commit"},
    "replication": {"base", "keyspace", "layout", "replication"},
    "channel": {"base", "os", "channel"},
    "connector": {
        *("base", "keyspace", "format", "layout", "store", "commit", "replication", "connector")
    },
    # What both need of each other goes through public headers.
    "linked": {"base", "os", "linked"},
}


def room(target: str) -> str:
    """Return the room of a path below src: its folder, or its two folders below store."""
    parts = target.split("/")
    return "/".join(parts[:2]) if parts[0] == "store" and len(parts) > 2 else parts[0]


@rule
def include_direction(tree: Tree) -> Iterator[str]:
    """Arrows between folders go one way; only the composition root sees a back end."""
    for path in tree.paths(CPP, "src"):
        own = room(path.removeprefix("src/"))
        allowed = ALLOWED_INCLUDES.get(own.partition("/")[0])
        if allowed is None:
            yield f"{path}:1: folder '{own}' has no row in ALLOWED_INCLUDES"
            continue
        for line, target, quoted in includes(tree, path):
            if not quoted or target.startswith("kvc/") or is_test(path):
                continue
            if is_test(target) or target.startswith(("bindings/", "bench/")):
                yield f"{path}:{line}: the library does not include '{target}'"
            elif not tree.exists("src/" + target):
                yield f"{path}:{line}: write '{target}' from src, as in \"base/bytes.h\""
            elif room(target) not in allowed | {own}:
                yield f"{path}:{line}: '{own}' must not see '{target}'"


@rule
def public_headers(tree: Tree) -> Iterator[str]:
    """Public headers use the standard library and each other, and say so once."""
    for path in tree.paths((".h",), "include"):
        for line, target, quoted in includes(tree, path):
            if quoted and not tree.exists("include/" + target):
                yield f"{path}:{line}: '{target}' is not a public header"
            elif not quoted and not re.fullmatch(r"[a-z_0-9]+", target):
                yield f"{path}:{line}: <{target}> is not of the standard library"
        yield from matches(path, tree.code(path), r"\b(?:throw|catch)\b", "errors are values")
    for path in tree.paths((".h",)):
        if "#pragma once" not in tree.text(path):
            yield f"{path}:1: no #pragma once"


ENGINES = r"(?i)tensor-?rt|trt-?llm|trtllm|vllm|sglang|\bpytorch\b|\btorch\b"
PYTHON = r"(?i)\bpython\b|pybind|nanobind|(?-i:\bnb::|\bPy[A-Z]\w+)"
BACKENDS = r"(?i)mooncake|redis|\bs3\b|memory_?store\b|file_?store\b"


@rule
def names_in_the_core(tree: Tree) -> Iterator[str]:
    """The core knows no engine and no Python; the public interface knows no back end."""
    for path in tree.paths((*CPP, ".txt", ".md"), "include", "src"):
        text = tree.text(path)
        yield from matches(path, text, ENGINES, "no room of the core knows an engine")
        yield from matches(path, text, PYTHON, "the core does not know Python")
        if path.startswith("include/"):
            yield from matches(path, text, BACKENDS, "public headers name no back end")


@rule
def library_symbols(tree: Tree) -> Iterator[str]:
    """The library links without an interpreter."""
    for symbol in sorted(set(re.findall(r"\b_?Py[A-Z_]\w+", tree.symbols))):
        yield f"libkvc.a: undefined symbol {symbol}: the core does not know Python"


@rule
def mooncake_package(tree: Tree) -> Iterator[str]:
    """The package `mooncake` is Mooncake's; ours would hide it."""
    for path in tree.paths((".py",)):
        if path.endswith("mooncake/__init__.py"):
            yield f"{path}:1: must not exist"


# ---- nothing gets lost -----------------------------------------------------------------------


@rule
def registered_sources(tree: Tree) -> Iterator[str]:
    """Every source and test is named in the CMakeLists.txt of its folder or of one above it."""
    for path in tree.paths((".cc",)):
        source = PurePosixPath(path)
        named = any(
            source.relative_to(folder).as_posix() in tree.cmake_words(folder)
            for folder in source.parents
        )
        if not named:
            yield f"{path}:1: no CMakeLists.txt names it, so it is not built"


@rule
def no_skipped_tests(tree: Tree) -> Iterator[str]:
    """A test that does not run proves nothing; deviations are parameters."""
    pattern = r"\bGTEST_SKIP\b|\bDISABLED_\w+|\bpytest\.skip\b|\bmark\.(?:skip|skipif|xfail)\b"
    for path in tree.paths((*CPP, ".py")):
        if not path.startswith("tests/repo_rules/"):  # names what it bans
            yield from matches(path, tree.text(path), pattern, "make the deviation a parameter")


@rule
def contracts_name_tests(tree: Tree) -> Iterator[str]:
    """Each test that a contract page names exists, and each page names some."""
    cpp = "\n".join(tree.text(path) for path in tree.paths((".cc", ".h")))
    test = r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)"
    known = set(re.findall(test, cpp, re.MULTILINE))
    for path in tree.paths((".md",), "docs/contract"):
        text = tree.text(path)
        in_cpp = re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", text)
        in_python = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
        for suite, name in in_cpp:
            if (suite, name) not in known:
                yield f"{path}:1: there is no test {suite}.{name}"
        for file, name in in_python:
            if not tree.exists(file) or not re.search(rf"\bdef {name}\(", tree.text(file)):
                yield f"{path}:1: there is no test {file}::{name}"
        if not in_cpp and not in_python:
            yield f"{path}:1: names no test as `Suite.Name` or `path/test_x.py::test_name`"


@rule
def conformance(tree: Tree) -> Iterator[str]:
    """Each back end and each decorator runs the conformance suite."""
    covered = {
        target
        for path in tree.paths((".cc",))
        if "register_store_conformance(" in tree.code(path)
        for _, target, quoted in includes(tree, path)
        if quoted
    }
    for path in tree.paths((".h",), "src/store"):
        target = path.removeprefix("src/")
        if target.count("/") == 2 and target.endswith("_store.h") and target not in covered:
            yield f"{path}:1: no source that includes it calls register_store_conformance()"
    folders = {room(p.removeprefix("src/")) for p in tree.paths((".h", ".cc"), "src/store")}
    for folder in sorted(folders - {"store"}):
        if not any(target.startswith(folder + "/") for target in covered):
            yield f"src/{folder}: nothing of it runs the conformance suite"


# ---- text ------------------------------------------------------------------------------------


@rule
def leftovers(tree: Tree) -> Iterator[str]:
    """Work is done or is an issue; texts name no machine."""
    marks = r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b"
    places = r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot)/"
    for path in tree.paths(TEXT):
        text = tree.text(path)
        yield from matches(path, text, marks, "do it or file it")
        yield from matches(path, text, places, "a path of one machine")


@rule
def links(tree: Tree) -> Iterator[str]:
    """Relative links of the documents lead somewhere."""
    for path in tree.paths((".md",)):
        folder = PurePosixPath(path).parent
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", tree.text(path)):
            if "://" not in target and not tree.exists((folder / target).as_posix()):
                yield f"{path}:1: link to {target}, which does not exist"


@rule
def one_version(tree: Tree) -> Iterator[str]:
    """C++ and Python packages carry the same version."""
    cmake = re.search(r"project\(kvc VERSION ([\d.]+)", tree.text("CMakeLists.txt"))
    python = re.search(r'^version = "([\d.]+)"', tree.text("pyproject.toml"), re.MULTILINE)
    if not cmake or not python or cmake.group(1) != python.group(1):
        yield "pyproject.toml:1: its version is not that of project(kvc) in CMakeLists.txt"


@rule
def dependencies_explained(tree: Tree) -> Iterator[str]:
    """Every package of the lists has its reason."""
    page = tree.text("docs/dependencies.md")
    lists = ("scripts/apt-packages.txt", "scripts/pip-packages.txt", "docs/requirements.txt")
    for path in lists:
        for line in tree.text(path).splitlines():
            name = line.partition("#")[0].partition("==")[0].strip()
            if name and f"`{name}`" not in page:
                yield f"{path}:1: docs/dependencies.md does not say why {name} is needed"
