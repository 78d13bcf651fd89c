"""The public names: complete, sorted, cheap to import, and not hidden by modules of the same name [A5]."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import bothends

PUBLIC = [
    "AddError", "AddOptions", "AsyncBatchContext", "AsyncContext", "AsyncTransaction", "BatchContext", "BatchHandlerDecorator",
    "BothendsError", "ConfigError", "Consumer", "Context",
    "DuplicateEventId", "EffectNotAllowed", "EventId", "EventNotAwaited", "ForeignJson", "HandlerDecorator",
    "HandlerEndedTransaction", "InvalidEvent", "Message", "MissingKey", "NOT_DONE", "NoTransaction", "NotDone",
    "NotSent", "Outbox", "Permanent", "Retry", "RetryAfter", "Service", "SyncTransaction", "Tombstone", "Transient",
    "UNSET", "UnsafeSavepoint", "event",
]


def test_all_is_complete_and_sorted() -> None:
    assert bothends.__all__ == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(bothends))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_is_there(name: str) -> None:
    assert getattr(bothends, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(bothends.__file__).read_text())
    seen = [alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname]
    assert sorted(seen) == sorted(PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Evnet'"):
        _ = bothends.Evnet


@pytest.mark.parametrize(
    "statement", ["import bothends", "from bothends import *", "from bothends import Service; Service('a').consumer('b')"],
)
def test_importing_needs_no_extra(statement: str) -> None:
    extras = ("sqlalchemy", "asyncpg", "aiosqlite", "psycopg", "confluent_kafka", "pydantic")
    code = (
        f"import sys\nfor name in {extras!r}: sys.modules[name] = None\n"  # importing one of them raises now
        f"{statement}\nassert not [m for m in sys.modules if m.split('.')[0] in {extras!r} and sys.modules[m]]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_module_is_named_like_a_public_function() -> None:
    functions = {"event", "context", "async_context", "case", "explicit_begin"}
    modules = {module.name.rpartition(".")[2] for module in pkgutil.walk_packages(bothends.__path__, "bothends.")}
    assert not modules & functions
    assert callable(importlib.import_module("bothends").event)
