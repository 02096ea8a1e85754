"""What the documentation shows is run, and does what it shows.

In `README.md`, the pages beside it and `docs/`, the blocks of one file run from top to bottom, in
one empty directory:

- ```` ```python ```` blocks share their names, and may use `await`. One that starts with `>>>` is
  a doctest, so its output is compared.
- A python block with `title="name.py"` is a file that the reader writes; a command below uses it.
- A ```` ```text ```` block that follows a python or bash block directly is what that block prints.
- ```` ```console ```` and ```` ```bash ```` blocks are commands. In a console block each command
  starts with `$ `, and lines below it are its output, `...` standing for anything; a command
  without such lines may print what it likes. Times, ids, ages and sizes match any other time, id,
  age and size. Every command must succeed, unless the last line that is shown is `Killed`.
- `<!-- no-run: reason -->` on the line above keeps a shell block from being run. That is for
  installing, for make, for docker and for a server that stays in the foreground, nothing else; or
  `<!-- no-run: tests/….py runs it -->`, where the program needs another environment.

The doctests of all modules are run as well, and so is every file of `examples/`.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

from surehold.storage import registry

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
TAKEN_FROM = [
    ROOT / "docs" / page
    for page in ("quick-reference.md", "how-to/langgraph.md", "guides/resilience.md")
]
"""Pages that people take blocks from, rather than follow from top to bottom."""
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
MODULES = [path for path in sorted(SRC.rglob("*.py")) if ">>> " in path.read_text("utf-8")]

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w*)(?P<more>[^`\n]*)$")
TITLE = re.compile(r' title="(?P<file>[\w.-]+)"')
NO_RUN = re.compile(r"^ *<!-- no-run: \S.* -->$")
ELSEWHERE = re.compile(r"<!-- no-run: (?P<test>tests/\S+\.py) runs it -->")
NEEDS_A_SERVER = re.compile(r"\b(postgresql|redis|s3|gs|az|cosmos)(\+\w+)?://\w")
NEED_NOT_RUN = re.compile(
    r"(sudo )?((uv )?(pip|tool|add)|pipx|apt(-get)?|git clone|cd|make|docker|python3 -m venv"
    r"|pg_dump|pg_restore|surehold serve)\b|\. \.venv/bin/activate"
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LANGUAGES = {"python", "console", "bash", "text"}
OTHER_SPELLINGS = {"py", "python3", "pycon", "sh", "shell", "zsh"}
VOLATILE = {
    "TIME": r"(\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(\.\d+)?Z?",
    "ID": r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
    "AGE": r"\b\d+ (s|min|h) ago",
    "SIZE": r"\b\d+(\.\d+)? [kMGT]?B\b",
}
# What a shell without a terminal says of a process that was killed, and what one with it says.
KILLED = re.compile(r"^bash: line \d+: +\d+ (Killed) .*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    path: Path
    line: int
    language: str
    text: str
    marked: bool
    file: str = ""
    test: str = ""
    """The test that runs it, if another environment is needed."""

    @property
    def where(self) -> str:
        return f"{self.path.name}:{self.line}"


def blocks_of(path: Path, text: str) -> Iterator[Block]:
    """The blocks of *text* that are to be run, and those marked not to be."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        number += 1
        if not opening:
            continue
        first, indent = number, len(opening["indent"])
        while number < len(lines) and lines[number].strip() != opening["ticks"]:
            number += 1
        language = opening["language"]
        assert language not in OTHER_SPELLINGS, f"{path}:{first}: use one of {LANGUAGES}"
        if language in LANGUAGES:
            above = lines[first - 2] if first >= 2 else ""
            body = "".join(f"{line[indent:]}\n" for line in lines[first:number])
            title = TITLE.search(opening["more"])
            file = title["file"] if title else ""
            elsewhere = ELSEWHERE.search(above)
            test = elsewhere["test"] if elsewhere else ""
            yield Block(path, first + 1, language, body, bool(NO_RUN.match(above)), file, test)
        number += 1


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a shell block, each with the output that is shown ("" for none)."""
    if block.language == "bash":
        yield block.text, ""
        return
    chunks = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not chunks[0].strip(), f"{block.where}: a console block starts with `$ `"
    for chunk in chunks[1:]:
        lines = chunk.splitlines(keepends=True)
        length = 1
        while lines[length - 1].endswith("\\\n") and length < len(lines):
            length += 1
        yield "".join(lines[:length]), "".join(lines[length:])


def exact_output(shown: str, printed: str) -> bool:
    """True if a block printed what is shown, `...` standing for anything."""
    return doctest.OutputChecker().check_output(shown, printed, FLAGS)


def same_output(shown: str, printed: str) -> bool:
    """Whether a command printed what is shown, but for what differs each time."""
    for name, pattern in VOLATILE.items():
        shown, printed = (re.sub(pattern, name, text) for text in (shown, printed))
    return exact_output(shown, printed)


class Reader:
    """Somebody who follows a document, doing all that it says."""

    def __init__(self, directory: Path, main: ModuleType, loop: asyncio.Runner) -> None:
        self.directory = directory
        self.names = vars(main)
        self.loop = loop
        self.printed: str | None = None
        self.same = exact_output

    def follow(self, block: Block) -> None:
        printed, self.printed = self.printed, None
        if block.file:
            (self.directory / block.file).write_text(block.text, "utf-8")
        elif block.language == "text":
            if printed is not None:
                assert self.same(block.text, printed), (
                    f"{block.where}: shown:\n{block.text}\nprinted:\n{printed}"
                )
        elif block.language != "python":
            self.run_commands(block)
        elif block.text.lstrip().startswith(">>> "):
            self.run_doctest(block)
        else:
            self.run_python(block)

    def run_python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.text
        code = compile(
            source, str(block.path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        with redirect_stdout(StringIO()) as output:
            result = eval(code, self.names)
            if inspect.iscoroutine(result):
                self.loop.run(result)
        self.printed, self.same = output.getvalue(), exact_output

    def run_doctest(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(
            block.text, {}, block.where, str(block.path), block.line - 1
        )
        test.globs = self.names
        report: list[str] = []
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append, clear_globs=False)
        assert not report, "".join(report)

    def run_commands(self, block: Block) -> None:
        for command, shown in commands_of(block):
            # The second command keeps bash from becoming the first, so that it can tell of its end.
            script = f"{command.rstrip()}\nexit $?"
            done = execute(["bash", "-euo", "pipefail", "-c", script], self.directory)
            expected = 128 + signal.SIGKILL if shown.endswith("Killed\n") else 0
            assert done.returncode == expected, f"{block.where}: {command}{done.stdout}"
            printed = KILLED.sub(r"\1", done.stdout)
            if block.language == "bash":
                self.printed, self.same = printed, same_output
            if shown.strip():
                assert same_output(shown, printed), (
                    f"{block.where}: {command}shown:\n{shown}\nprinted:\n{printed}"
                )


def execute(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run *command* where this interpreter's own commands are found first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=directory,
        # Unbuffered, so that what goes to the two streams comes in its order, as on a terminal.
        env=os.environ | {"PATH": path, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(registry, "_named", dict(registry._named))
    monkeypatch.chdir(tmp_path)
    with asyncio.Runner() as loop:
        yield Reader(tmp_path, main, loop)


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=label)
def test_a_document_does_what_it_shows(path: Path, reader: Reader) -> None:
    for block in blocks_of(path, path.read_text("utf-8")):
        if not block.marked:
            reader.follow(block)


@pytest.mark.parametrize("path", TAKEN_FROM, ids=label)
def test_what_is_taken_from_a_page_can_be_run_again_where_it_was(
    path: Path, reader: Reader
) -> None:
    for time in (1, 2):
        for block in blocks_of(path, path.read_text("utf-8")):
            # What the second time prints may differ: it finds what the first has saved.
            if not block.marked and (time == 1 or block.language != "text"):
                reader.follow(block)


def test_only_installing_and_servers_are_kept_from_being_run() -> None:
    wrong = []
    for path in DOCUMENTS:
        for block in blocks_of(path, path.read_text("utf-8")):
            if not block.marked:
                continue
            if block.language == "python":
                compile(block.text, block.where, "exec")
                if not NEEDS_A_SERVER.search(block.text):
                    wrong.append(f"{block.where}: Python that needs no server is always run")
                continue
            if block.test:
                text = (ROOT / block.test).read_text("utf-8")
                wrong += [
                    f"{block.where}: {block.test} does not run {name}"
                    for name in re.findall(r"^\$ python (\S+)", block.text, re.MULTILINE)
                    if name not in text
                ]
                continue
            for line in block.text.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ").strip()
                on_a_server = NEEDS_A_SERVER.search(command)
                if command and not on_a_server and not NEED_NOT_RUN.match(command):
                    wrong.append(f"{block.where}: {line}")
    assert wrong == []


AWAITED = "`python -m asyncio`, or inside an `async def` that `asyncio.run` is given"


def test_a_page_whose_blocks_await_at_the_top_says_how_to_run_them() -> None:
    """Saved as a file, such a block is a SyntaxError."""
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        for block in blocks_of(path, text):
            if block.language != "python" or block.text.startswith(">>>"):
                continue
            try:
                compile(block.text, block.where, "exec")
            except SyntaxError:
                assert AWAITED in " ".join(text.split()), block.where


def test_a_file_that_is_shown_is_used() -> None:
    unused = []
    for path in DOCUMENTS:
        blocks = list(blocks_of(path, path.read_text("utf-8")))
        for number, block in enumerate(blocks):
            if not block.file or NEEDS_A_SERVER.search(block.text):
                continue
            below = [later for later in blocks[number:] if later.language in ("console", "bash")]
            module = block.file.removesuffix(".py")
            used = (block.file, f" {module}:", f"surehold serve {module} ")
            if not any(name in later.text and not later.marked for later in below for name in used):
                unused.append(f"{block.where}: no command uses {block.file}")
    assert unused == []


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_the_examples_of_a_module_are_true(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = path.relative_to(SRC).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("path", EXAMPLES, ids=label)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    done = execute([sys.executable, str(path)], tmp_path)
    assert done.returncode == 0, done.stdout


DOCUMENT = """\
# A title

```python
import asyncio
count = 1
```
text, and a fence inside a list:

- item
  ```python
  count += 1
  await asyncio.sleep(0)
  open("left-behind", "w").close()
  ```

```python
>>> count
2
```

```console
$ ls
left-behind
$ printf 'took %s ms\\n' \\
    17
took ... ms
```

```python title="victim.py"
import os, signal
print("read 1 page, 13:01:02, 18 B")
os.kill(os.getpid(), signal.SIGKILL)
```

```console
$ python victim.py
read 1 page, 23:59:59, 1.2 kB
Killed
```

<!-- no-run: it installs -->
```bash
pip install surehold
```

```json
{"not": "run"}
```
"""


def test_the_blocks_of_a_document_are_found_in_order() -> None:
    found = list(blocks_of(Path("a.md"), DOCUMENT))
    assert [(block.language, block.line, block.marked) for block in found] == [
        ("python", 4, False),
        ("python", 11, False),
        ("python", 17, False),
        ("console", 22, False),
        ("python", 30, False),
        ("console", 36, False),
        ("bash", 43, True),
    ]
    assert found[1].text.startswith("count += 1\n")


def test_a_reader_gets_through_a_true_document(reader: Reader) -> None:
    for block in blocks_of(Path("a.md"), DOCUMENT):
        if not block.marked:
            reader.follow(block)
    assert reader.names["count"] == 2


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "assert 1 == 2\n"),
        ("python", "assert await nothing\n"),
        ("python", ">>> 1 + 1\n3\n"),
        ("console", "$ echo one\ntwo\n"),
        ("console", "$ echo 2 B at 12:00:00\n3 s at 12:00:00\n"),
        ("console", "$ false\n"),
        ("console", "$ true\nKilled\n"),
        ("console", "echo no dollar\n"),
        ("bash", "false\ntrue\n"),
        ("bash", "false | true\n"),
    ],
)
def test_a_reader_notices_what_is_not_so(reader: Reader, language: str, text: str) -> None:
    with pytest.raises((AssertionError, NameError)):
        reader.follow(Block(Path("a.md"), 1, language, text, False))


def test_a_text_below_a_bash_block_is_what_it_prints(reader: Reader) -> None:
    def below(text: str) -> None:
        reader.follow(Block(Path("a.md"), 1, "bash", "echo one at 12:00:00\n", False))
        reader.follow(Block(Path("a.md"), 3, "text", text, False))

    below("one at 23:59:59\n")
    with pytest.raises(AssertionError, match="shown"):
        below("two at 23:59:59\n")


HELLO = {"surehold.run(": 8, "@surehold.workflow": 8, "StateGraph(": 9, "Agent(": 8}
"""A word of each hello world in the README, and the most lines that it may have."""


def test_the_hello_world_of_each_way_in_is_short() -> None:
    blocks = [
        block.text
        for block in blocks_of(ROOT / "README.md", (ROOT / "README.md").read_text("utf-8"))
        if block.language == "python"
    ]
    for word, most in HELLO.items():
        (shown,) = (text for text in blocks if word in text)
        assert sum(bool(line.strip()) for line in shown.splitlines()) <= most, shown
