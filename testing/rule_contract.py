"""The promises of a custom rule (``rules.own_transformation``), as tests."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

_ELSEWHERE = """
import pickle, sys
rule, values = pickle.load(sys.stdin.buffer)
pickle.dump([rule.apply(value) for value in values], sys.stdout.buffer)
"""


class TransformationContract:
    """Needs a fixture ``rule``, which returns what is tried: ``OwnRule(options)``. ``values`` are texts that it takes."""

    values: ClassVar[Sequence[str]] = ("", " ", "plain", "Größe 数量 😀", "line\nbreak\ttab", "x" * 100_000)

    def test_every_value_becomes_a_text(self, rule: Any) -> None:
        made = [rule.apply(value) for value in self.values]
        assert [type(each) for each in made] == [str] * len(made)
        assert not [each for each in made if "\0" in each], "PostgreSQL has no text with a NUL"

    def test_the_same_value_always_becomes_the_same(self, rule: Any) -> None:
        """Values come in any sequence: a row is found again by its transformed values."""
        made = {value: rule.apply(value) for value in self.values}
        assert {value: rule.apply(value) for value in reversed(self.values)} == made

    @pytest.mark.parametrize("seed", ["1", "2"])
    def test_another_process_makes_the_same(self, rule: Any, seed: str) -> None:
        """Another process has another ``hash`` of a text."""
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        sent = pickle.dumps((rule, list(self.values)))
        done = subprocess.run([sys.executable, "-c", _ELSEWHERE], input=sent, capture_output=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert pickle.loads(done.stdout) == [rule.apply(value) for value in self.values]
