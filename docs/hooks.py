"""Adds pages to the site that are not in ``pages/``, and adapts links.

Reference pages are generated from the code, and so is the list of models in the
reference of the API; READMEs of folders are used unchanged.
Links in the sources are those of the repository, so that they work there, too. A link
to a file that the site has becomes a link within the site; any other link becomes the
file's name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import site_reference
from mkdocs.structure.files import File

from embark_jax.config.models import MODELS

ROOT = Path(__file__).parents[1]
PAGES = "docs/pages"

READMES = {
    "embark_jax/embedding/README.md": "concepts/embedding.md",
    "embark_jax/planner/README.md": "concepts/planner.md",
    "embark_jax/checkpoint/README.md": "reference/checkpoint.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    **{
        f"experiments/{name}/README.md": f"experiments/{name}.md"
        for name in (path.parent.name for path in ROOT.glob("experiments/*/README.md"))
    },
}
"""The page of the site for each README of the repository."""

GENERATED = {
    "reference/cli.md": site_reference.commands,
    "reference/config.md": site_reference.config_keys,
    "experiments.md": site_reference.experiments,
}

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    for path, page in READMES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
        for image, _, target, _ in LINK.findall((ROOT / path).read_text("utf-8")):
            source = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if image and not target.startswith("http"):
                files.append(
                    File.generated(config, source, abs_src_path=str(ROOT / source))
                )
    for page, make in GENERATED.items():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turns links of the repository into links of the site, and ``MODELS`` into the
    classes of the registry of models."""
    here = page.file.src_uri
    if here == "reference/api.md":
        classes = [path.replace(":", ".") for path in MODELS.values()]
        markdown = markdown.replace("\nMODELS\n", "\n::: ".join(["", *classes]) + "\n")
    sources = {site: path for path, site in READMES.items()}
    folder = posixpath.dirname(sources.get(here, f"{PAGES}/{here}"))

    def replace(link: re.Match) -> str:
        image, text, target, anchor = link.groups(default="")
        if ":" in target or here in GENERATED:
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        site = READMES.get(path) or path.removeprefix(f"{PAGES}/")
        if files.get_file_from_path(site) is not None:
            to = posixpath.relpath(site, posixpath.dirname(here) or ".")
            return f"{image}[{text}]({to}{anchor})"
        if not (ROOT / path).exists():
            return link[0]  # the build then complains of it
        return text if text.strip("`") in path else f"{text} (`{path}`)"

    return LINK.sub(replace, markdown)
