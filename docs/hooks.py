"""Hooks for MkDocs: pages that are kept elsewhere in the repository, and links between all of them.

A Markdown file links to other files of the repository by relative paths, so that the links work where the
file is read. In the site, a link to a file that is a page leads to that page. A link to any other file
leads to the repository. A link to a file that does not exist is an error.
"""

import os
import posixpath
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "bin" / "locksidecar"

# The page or picture, and the file that it comes from.
KEPT_ELSEWHERE = {
    "index.md": "README.md",
    "contents.md": "docs/README.md",
    "diagrams/hot-32x2.svg": "bench/results/hot-32x2.svg",
    "reference/protocol.md": "protocol/PROTOCOL.md",
    "reference/changes.md": "CHANGELOG.md",
    "contribute/index.md": "CONTRIBUTING.md",
    "contribute/driver.md": "upstream/WRITING_A_DRIVER.md",
    "contribute/benchmarks.md": "bench/README.md",
    "contribute/model.md": "cache/model/README.md",
}
PAGE_OF = {source: page for page, source in KEPT_ELSEWHERE.items()}

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in KEPT_ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "reference/cli.md", content=cli()))
    files.append(File.generated(config, "reference/metrics.md", content=metrics()))
    return files


def run(*args: str) -> str:
    return subprocess.run([PROGRAM, *args], check=True, capture_output=True, text=True).stdout


def cli() -> str:
    """Return a page with what each command says of itself."""
    page = "# Command line reference\n\nThis page is what `--help` prints.\n"
    commands = re.findall(r"^  (\w+) +[A-Z]", run("--help"), re.MULTILINE)
    for command in ["", *(c for c in commands if c not in ("completion", "help"))]:
        name = f"locksidecar {command}".strip()
        page += f"\n## {name}\n\n```text\n{run(*command.split(), '--help')}```\n"
    return page + f"\n## Exit codes\n\n```text\n{run('help', 'exit-codes')}```\n"


def metrics() -> str:
    """Return a page with the metrics that a daemon offers."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "s")
        with subprocess.Popen([PROGRAM, "serve", "--socket", path], stderr=subprocess.DEVNULL) as daemon:
            try:
                text = scrape(path + ".admin", daemon)
            finally:
                daemon.terminate()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    page = "# Metrics\n\nThe metrics of a daemon with the embedded store, without those of Go and of the process.\n"
    page += "Connections to a store are counted by `locksidecar_upstream_connections`.\n"
    page += "\n| metric | type | meaning |\n|---|---|---|\n"
    for name, meaning in re.findall(r"^# HELP (locksidecar_\S+) (.*)$", text, re.MULTILINE):
        page += f"| `{name}` | {kinds[name]} | {meaning.replace('|', chr(92) + '|')} |\n"
    return page


def scrape(path: str, daemon: subprocess.Popen[bytes]) -> str:
    """Return the metrics of a daemon that has just been started."""
    while daemon.poll() is None:
        with socket.socket(socket.AF_UNIX) as s:
            try:
                s.connect(path)
            except OSError:
                time.sleep(0.01)
                continue
            s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with s.makefile("rb") as answer:
                return answer.read().decode()
    raise PluginError(f"{PROGRAM} serve ended with {daemon.returncode}")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    source = KEPT_ELSEWHERE.get(here, posixpath.join("docs", here))

    def link(m: re.Match[str]) -> str:
        target = m[2]
        if "://" in target or target.startswith("mailto:"):
            return m[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            raise PluginError(f"{source}: link to {target}, which does not exist")
        if path in PAGE_OF:
            target = posixpath.relpath(PAGE_OF[path], posixpath.dirname(here) or ".")
        elif path.startswith("docs/"):
            target = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(here) or ".")
        else:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            target = f"{config.repo_url}/{kind}/main/{path}"
        return f"{m[1]}{target}{m[3] or ''}{m[4]}"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(p if p.startswith("```") else LINK.sub(link, p) for p in parts)
