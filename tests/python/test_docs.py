"""Documentation that can be checked is checked: links, commands, settings, output fields."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import ROOT, help_text, named_in_backticks, section, tables, verbs

SKIPPED_FOLDERS = {"build", ".venv", ".git", ".pytest_cache"}
SCRIPTS = ROOT / "benchmarks" / "tensorrt_llm_kv_connector"
DEPLOY = SCRIPTS / "deploy" / "run_ctx_gen_store.sh"
# Prefixes of variables that belong to Mooncake and that no table of ours lists.
MOONCAKE_VARIABLES = ("MC_TCP_", "MC_RPC_", "MC_STORE_", "MC_LOG_")
GUIDE = "docs/source/getting_started/examples/tensorrt-llm-integration.md"
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SHELL_FENCE = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


# What the pages say ---------------------------------------------------------------------------


def pages() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)
    )


PAGES = pages()
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def without_fences(text: str) -> str:
    return FENCE.sub("", text)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", without_fences(text))


def anchors(page: Path) -> set[str]:
    """Heading anchors as GitHub and MyST make them."""
    text = without_fences(page.read_text())
    found = set()
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def commands(text: str) -> list[list[str]]:
    """Commands of shell fences and of inline code, as words. Continuation lines are joined."""
    code = [block.replace("\\\n", " ") for block in SHELL_FENCE.findall(text)]
    lines = [line for block in code for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", without_fences(text))
    found = []
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        found += [part for part in split_words(words) if part]
    return found


def split_words(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "||", ";", "|"):
            parts.append([])
        elif parts[-1] or not re.fullmatch(r"[A-Z_]+=.*", word):  # no variables before a command
            parts[-1].append(word.rstrip(",;"))
    return parts


# Links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_links_resolve(name: str) -> None:
    page = ROOT / name
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


def test_every_page_of_the_site_is_reachable() -> None:
    """A page that the index does not name is not in the site's navigation."""
    index = ROOT / "docs" / "source" / "index.md"
    named: set[Path] = set()
    for block in TOCTREE.findall(index.read_text()):
        for entry in block.split():
            if not entry.startswith(":"):
                named.update(index.parent.glob(entry if entry.endswith("*") else entry + ".md"))
    site = {page for page in PAGES if page.is_relative_to(ROOT / "docs") and page != index}
    assert {page.resolve() for page in site} == {page.resolve() for page in named}


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "docs/hacking.md"])
def test_named_files_exist(name: str) -> None:
    """Paths in inline code: those with a folder and no placeholder."""
    text = without_fences((ROOT / name).read_text())
    made_by_a_build = ("build/", ".venv/")
    missing = [
        path
        for path in re.findall(r"`([\w.]+/[\w./-]*)`", text)
        if not path.startswith(made_by_a_build) and not (ROOT / path).exists()
    ]
    assert not missing


# Commands -------------------------------------------------------------------------------------


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return {
        target
        for names in re.findall(r"^([a-z][\w -]*):(?!=)", text, flags=re.MULTILINE)
        for target in names.split()
    }


def program(words: list[str]) -> tuple[list[str], list[str]] | None:
    """For a command of ours: how to run it here, and the arguments in the text."""
    name = words[0].rpartition("/")[2]
    if name == DEPLOY.name and len(words) > 1:
        return [str(DEPLOY), words[1]], words[2:]
    if name == "mooncake-trtllm" and len(words) > 1:
        return [sys.executable, "-m", "mooncake_trtllm", words[1]], words[2:]
    for position, word in enumerate(words[:2]):
        for script in (SCRIPTS / word, ROOT / word):
            if word.endswith(".py") and script.is_file():
                return [sys.executable, str(script)], words[position + 1 :]
    return None


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_commands_exist(name: str) -> None:
    """Each `make` target, verb and option that a page shows."""
    wrong = []
    for words in commands((ROOT / name).read_text()):
        if words[0] == "make":
            targets = [word for word in words[1:] if re.fullmatch(r"[a-z][\w-]*", word)]
            wrong += [f"make {target}" for target in targets if target not in make_targets()]
            continue
        known = program(words)
        if known is None:
            continue
        command, arguments = known
        if command[1] == "-m" and command[-1] not in verbs() | {"VERB"}:
            wrong.append(" ".join(words[:2]))
            continue
        if "VERB" in command:
            continue
        options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
        wrong += [
            f"{' '.join(words[:2])} {option}"
            for option in options
            if not re.search(rf"{re.escape(option)}\b", help_text(*command))
        ]
    assert not wrong


def test_readme_names_the_main_commands() -> None:
    """The check above would be content with an empty page."""
    shown = [" ".join(words) for words in commands((ROOT / "README.md").read_text())]
    for wanted in (
        "make demo",
        "make test",
        "make test-fast",
        "make bench",
        "make lint",
        "make showcase",
    ):
        assert wanted in shown
    assert {"selfcheck", "trace"} <= {
        words[1] for words in map(str.split, shown) if words[0].endswith("mooncake-trtllm")
    }


def test_showcase_writes_to_where_the_readme_says() -> None:
    text = (ROOT / "README.md").read_text()
    (folder,) = re.findall(r"one HTML report in `([^`]+)/`", text)
    assert f"default: {folder}" in " ".join(help_text(str(DEPLOY), "showcase").split())
    assert "showcase --out" not in (ROOT / "Makefile").read_text()


def test_the_example_of_the_library_builds_and_runs(tmp_path: Path) -> None:
    """As a user of the installed library has it, with nothing but what the page says."""
    page = (ROOT / "docs" / "cpp-library.md").read_text()
    for language, name in (("cmake", "CMakeLists.txt"), ("cpp", "names.cc")):
        (text,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(text)
    build = tmp_path / "build"
    prefix = f"-DCMAKE_PREFIX_PATH={ROOT / 'build' / 'core'}"
    for command in (
        ["cmake", "-S", str(tmp_path), "-B", str(build), prefix],
        ["cmake", "--build", str(build)],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    names = subprocess.run([str(build / "names")], check=True, capture_output=True, text=True)
    assert re.fullmatch(r"([0-9a-f]{64}\n){2}", names.stdout)


# Settings and counters ------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["settings_page.py", "metrics_page.py"])
def test_tables_equal_the_code(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_variables_of_the_store_client_are_those_that_are_set() -> None:
    from mooncake_trtllm.mooncake_wheel import CLIENT_ENVIRONMENT

    page = (ROOT / "docs" / "source" / "settings.md").read_text()
    (rows,) = tables(page, "variable")
    assert {name: row["value"].strip("`") for name, row in rows.items()} == dict(CLIENT_ENVIRONMENT)


def test_settings_named_in_pages_exist() -> None:
    table = (ROOT / "docs" / "source" / "settings.md").read_text()
    known = {name for rows in tables(table, "setting") for name in rows}
    assert known
    for page in PAGES:
        named = set(re.findall(r"\b(?:MC|MOONCAKE)_[A-Z_]+\b", page.read_text()))
        ours = {name for name in named if not name.startswith(MOONCAKE_VARIABLES)}
        assert ours <= known, page


def test_counters_of_the_guide_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("MC_BACKEND", "memory")
    monkeypatch.setenv("MC_MODEL_REVISION", "docs")
    from bench.connector_path import ConnectorPath, Geometry

    path = ConnectorPath(Geometry.of_objects(64 << 10, 1), seed=1)
    try:
        counters = {"scheduler": path.scheduler_stats(), "worker": path.worker_stats()}
    finally:
        path.close()
    (rows,) = tables(section(GUIDE, "Watch it"), "counter")
    for name, row in rows.items():
        for counter in named_in_backticks(f"`{name}`"):
            assert counter in counters[row["of"]]


def code_text() -> str:
    """Everything that may hold a message, with adjacent literals joined."""
    files = [
        path
        for folder in ("python", "src", "bindings")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".cc") and "_test" not in path.name
    ]
    text = "\n".join(path.read_text() for path in files)
    return re.sub(r'"\s*\n?\s*f?"', "", text)


def test_messages_of_the_guide_are_in_the_code() -> None:
    code = code_text()
    found = list(tables(section(GUIDE, "Troubleshooting"), "message"))
    missing = [
        part
        for rows in found
        for message in rows
        for part in map(str.strip, message.split("..."))
        if part and part not in code
    ]
    assert len(found) == 6
    assert not missing


def test_what_ends_an_offer_is_in_the_guide_word_by_word() -> None:
    code = (ROOT / "src" / "connector" / "decision_log.cc").read_text()
    function = code.partition("std::string reason_of(")[2].partition("\n}\n")[0]
    told = []
    for end in re.findall(r"case PrefixEnd::\w+:\s+return ([^;]+);", function):
        words = re.findall(r'"([^"]*)"', end.rpartition('" : ')[2] or end)
        said = "...".join(words) + ("" if end.endswith('"') else "...")
        told.append(re.sub(r"\s+", " ", said))
    (rows,) = tables(section(GUIDE, "Watch it"), "ended by")
    assert len(told) == function.count("case PrefixEnd::")
    assert list(rows) == told


def test_every_refused_configuration_is_in_the_guide() -> None:
    code = (ROOT / "python" / "mooncake_trtllm" / "_checks.py").read_text()
    refused = set(re.findall(r'_refused\(\s*f?"([^"]+)"', code)) - {"kv_cache_config.{tier}"}
    assert len(refused) > 8
    text = section(GUIDE, "Troubleshooting")
    assert {name for name in refused if f"`{name}`" not in text} == set()


# Kinds of faults ------------------------------------------------------------------------------

# Rows of the log that the page is about, by section.
FAULT_KINDS = {
    "A": "B01 B02 B03 B04 B05 B06 B08 B09 B10 B11",
    "B": "B13 B16 B17",
    "C": "B18 B19 B20 B21 B23",
    "D": "B25 B26 B27 B28 B29 B30 B34 B35 B36 B37",
    "E": "B38 B40 B41 B42 B46 B47 B48 B50",
    "F": "B52 B53 B54 B55 B56",
    "G": "B57 B58 B60",
    "H": "B62 B63 B65",
    "I": "B66 B68 B69 B71 B72 B74 B75 B77",
    "J": "B78 B79 B82",
    "K": "B83 B85 B86 B87",
    "L": "B89 B90",
    "M": "B93 B94",
}
# Sections whose kinds must have a test named after the row, or a reason why they do not apply.
NAMED_AFTER_THEIR_ROW = "ABCDGIJKM"


def test_every_kind_of_fault_has_its_row() -> None:
    """That the tests exist is checked by a rule of tests/repo_rules."""
    page = (ROOT / "docs" / "contract" / "fault-kinds.md").read_text()
    sections = re.findall(r"^## (\w)\. ", page, flags=re.MULTILINE)
    found = dict(zip(sections, tables(page, "row"), strict=True))
    assert {letter: " ".join(rows) for letter, rows in found.items()} == FAULT_KINDS
    for letter, rows in found.items():
        for name, row in rows.items():
            tests = re.findall(r"`(?:[\w/.]+::|\w+\.)(\w+)`", row["tests"])
            reason = row["tests"].partition("Does not apply: ")[2]
            assert tests or reason, name
            if letter in NAMED_AFTER_THEIR_ROW and not reason:
                assert any(re.match(rf"(?i)(?:test_)?{name}_", test) for test in tests), name


def test_every_mark_of_the_simulation_has_its_row() -> None:
    code = (ROOT / "testing" / "sim" / "site.cc").read_text()
    names = re.findall(r'"([^"]+)"', code.partition("kNames{")[2].partition("};")[0])
    (rows,) = tables(section("docs/contract/simulation.md", "The marks"), "mark")
    assert len(names) > 40
    assert [name for row in rows for name in re.findall(r"`([^`]+)`", f"`{row}`")] == names
