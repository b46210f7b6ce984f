"""Classes that users wrote, named ``module:Class``: how they are found, and which options they get.

A module may be in the directory where the program is started, or anywhere on Python's path; Spark's tasks on this
machine find it in the same places, those on others need it installed there.

A class that has options declares them like pgsluice's, and gets an object of that class:

    @settings
    class Options:
        path: str = read(Option("path", Kind.TEXT, "File that holds the rows", "rows.db", required=True))

    class OwnSink:
        options = Options

Without ``options`` it gets the texts by their names.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, cast

from pgsluice.shared.config.declaration import make, options_of
from pgsluice.shared.config.load import load_given
from pgsluice.shared.config.option import Option
from pgsluice.shared.errors import UsageError

OwnClass = Callable[..., Any]


def is_class_name(name: str) -> bool:
    """Returns whether ``name`` has the form ``module:Class``."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def find_class(what: str, name: str) -> OwnClass:
    """``what`` is the thing that the class makes. Raises UsageError when ``name`` names none."""
    _share_path_with_tasks()
    module_name, _, attribute = name.partition(":")
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{what} {name} cannot be loaded: there is no module '{error.name}'",
            "start the program in the directory that holds it, set PYTHONPATH, or install it",
        ) from None
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UsageError(f"{what} {name} cannot be loaded: '{attribute}' is no class of {module.__file__}", "check its spelling")
    return cast(OwnClass, found)


def declared_options(own: OwnClass) -> list[Option]:
    """Returns the options in their order; none where the class declares no options."""
    declared = _declared(own)
    return [] if declared is None else list(options_of(declared)[1:])


def made_of(what: str, name: str, own: OwnClass, given: Mapping[str, str], *before: object, how: str) -> Any:
    """Calls the class with ``before`` and its options. ``how`` describes how to give an option, as the end of a
    sentence. Raises UsageError for an option that is missing, unknown or malformed; errors of the class pass through."""
    declared = _declared(own)
    told = _GivenOptions(given) if declared is None else _read(what, name, declared, given, how)
    arguments = (*before, told)
    try:
        inspect.signature(own).bind(*arguments)
    except TypeError as error:
        raise UsageError(
            f"{what} {name} takes other arguments than the {len(arguments)} it is given: {error}", "correct it"
        ) from None
    try:
        return own(*arguments)
    except _ForgottenOptionError as error:
        raise UsageError(f"{what} {name} needs the option '{error.args[0]}', which was not given", how) from None


def _declared(own: OwnClass) -> type[Any] | None:
    declared = getattr(own, "options", None)
    return declared if isinstance(declared, type) and is_dataclass(declared) else None


def _read(what: str, name: str, declared: type[Any], given: Mapping[str, str], how: str) -> Any:
    try:
        return make(declared, load_given(given, declared))
    except UsageError as error:
        raise UsageError(f"{what} {name}: {error.fact}", f"{error.remedy}. To do so, {how}") from None


class _ForgottenOptionError(KeyError):
    """The argument is the option's name."""


class _GivenOptions(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise _ForgottenOptionError(name)


def _share_path_with_tasks() -> None:
    """Python looks for scripts' modules in the script's directory, which for us is where programs are installed."""
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    path = os.environ.get("PYTHONPATH", "")
    if directory not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, path)))  # the JVM hands it on to Python workers
