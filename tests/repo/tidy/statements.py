"""The rule that SQL lives in `.sql` files, where it can be read, named, prepared and counted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.repo.tidy.sources import Finding, Source

#: A statement in capitals, or in small letters with enough of its grammar not to be English.
SQL = re.compile(
    r"\s*(?:"
    r"(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|TRUNCATE|LISTEN|NOTIFY|GRANT|LOCK|SET)\s"
    r"|(?:SELECT|BEGIN|COMMIT|ROLLBACK)\s*;?\s*$"
    r"|select\s.*\sfrom\s|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s|with\s+\w+\s+as\s*\("
    r"|(?:create|alter|drop)\s+(?:table|index|function|role|database|schema|type)\s"
    r")",
    re.DOTALL,
)


def sql_in_python(source: Source) -> Iterator[Finding]:
    """Yield every string of the product that is a statement; migrations are made of them and are exempt."""
    if not source.is_product or source.path.startswith("migrations/"):
        return
    prose = {id(node.value) for node in ast.walk(source.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and id(node) not in prose and SQL.match(str(node.value)):
            yield Finding(source.path, node.lineno, "sql-string", "belongs in a .sql file")
