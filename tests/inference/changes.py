"""What may change between two processes, as rows.

A row is a module with a class `Model`, and a change: in its text, in the environment, in the process before
the module is imported or after that, in the call, or in the options. To add a row, add a line to one of the
tables below.
"""

# ruff: noqa: E501 - a module of a row is one text

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

HEAD = """
import abc, builtins, collections, contextlib, copy, dataclasses, datetime, enum, functools, inspect, itertools
import logging, math, operator, os, pathlib, platform, random, socket, string, sys, threading, time, types
import typing, warnings
import importlib.metadata, importlib.util
import torch
from torch import nn
import torch.nn.functional as F
"""
MODEL = """
class Model(nn.Module):
  def forward(self, x):
    return x * ({expression})
"""


@dataclass(frozen=True)
class Row:
    """One kind of change."""

    name: str
    text: str
    """The module, with the class `Model`."""
    changed: str = ""
    """The same in the process with the change."""
    more: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Further files, and what they are then."""
    env: tuple[str | None, str | None] = (None, None)
    """The variable KEY, and what it is then."""
    first: tuple[str, str] = ("", "")
    """Run before the import, without and with the change."""
    then: tuple[str, str] = ("", "")
    """Run after it; `m` is the module, `model` the model."""
    call: tuple[str, str] = ("x", "x")
    """The arguments."""
    context: tuple[str, str] = ("", "")
    """What is around the call."""
    options: tuple[str, str] = ("", "")
    """Run with `config`."""
    last: str = ""
    """Run when the row is done, to undo what it did to the process."""
    same: bool = False
    """The change is none: an entry must be found again."""
    dynamic: bool = False
    kept: bool = True
    """An entry can be found again: what is read is the same in each process."""

    @property
    def module(self) -> str:
        """The name of the module."""
        return "row_" + re.sub(r"\W+", "_", self.name)

    @property
    def key(self) -> str:
        """The variable of the environment that is its own."""
        return self.module.upper()

    def _own(self, text: str) -> str:
        return text.replace("KEY", self.key).replace("MODULE", self.module)

    def files(self, changed: bool) -> dict[str, str]:
        """Its modules."""
        texts = {f"{self.module}.py": HEAD + (self.changed or self.text if changed else self.text)}
        texts |= {name: pair[changed] for name, pair in self.more.items()}
        return {self._own(name): self._own(text) for name, text in texts.items()}

    def environment(self, changed: bool) -> dict[str, str]:
        """Variables of the process."""
        value = self.env[changed]
        return {} if value is None else {self.key: value}

    def plan(self, changed: bool) -> dict[str, Any]:
        """What the process does."""
        names = ("first", "then", "call", "context", "options")
        parts = {name: self._own(getattr(self, name)[changed]) for name in names}
        rest = {"name": self.name, "module": self.module, "last": self._own(self.last)}
        return parts | rest | {"dynamic": self.dynamic}


def source(name: str, text: str, expression: str, old: str, new: str, **more: Any) -> Row:
    """A change of the text, or of the expression that reads it."""
    whole = text + "\n" + model(expression)
    assert old in whole, name
    return Row(name, whole, whole.replace(old, new), **more)


def model(expression: str) -> str:
    """A model that multiplies by an expression; by `k`, if it is a statement."""
    is_statement = "\n" in expression or expression.startswith(("with ", "for "))
    if not is_statement:
        return MODEL.format(expression=expression)
    lines = "".join(f"    {line}\n" for line in expression.strip().split("\n"))
    return f"\nclass Model(nn.Module):\n  def forward(self, x):\n{lines}    return x * k\n"


def environment(name: str, expression: str, before: str | None, after: str | None, text: str = "") -> Row:
    """A change of a variable of the environment."""
    return Row(name, text + model(expression), env=(before, after))


def process(name: str, text: str, expression: str, act: str, **more: Any) -> Row:
    """A change of the process after the import."""
    return Row(name, text + "\n" + model(expression), then=("", act), **more)


def _environment() -> Iterator[Row]:
    yes = "(2 if {} else 3)"
    for name, expression in {
        "getenv": "os.getenv('KEY') == 'a'",
        "getenv with a default": "os.getenv('KEY', 'a') == 'a'",
        "environ get": "os.environ.get('KEY') == 'a'",
        "environ get with a default": "os.environ.get('KEY', 'a') == 'a'",
        "a key of environ": "'KEY' in os.environ",
        "not a key of environ": "'KEY' not in os.environ",
        "bool of getenv": "os.getenv('KEY')",
        "environ get is None": "os.environ.get('KEY') is None",
        "a key of environ keys": "'KEY' in os.environ.keys()",
        "a key of the list of environ": "'KEY' in list(os.environ)",
    }.items():
        if "==" in expression:
            yield environment(f"{name}, changed", yes.format(expression), "a", "b")
            yield environment(f"{name}, set", yes.format(f"{expression[:-3]}'b'"), None, "b")
        is_default = "'a')" in expression
        if is_default or "==" not in expression:
            yield environment(f"{name}, removed", yes.format(expression), "b", None)
            yield environment(f"{name}, new", yes.format(expression), None, "b")
    yield environment("environ item", yes.format("os.environ['KEY'] == 'a'"), "a", "b")
    yield environment("number of the environment", "float(os.environ.get('KEY', '3'))", "2", "4")
    yield environment("number of the environment, removed", "float(os.environ.get('KEY', '3'))", "2", None)
    yield environment("int of getenv", "int(os.getenv('KEY', 3))", None, "4")
    yield environment(
        "environ through a name", "g(os.environ)", None, "4", "def g(e): return int(e.get('KEY', 3))\n"
    )
    yield environment("getenv imported", "int(getenv('KEY', 3))", None, "4", "from os import getenv\n")
    yield environment("environ imported", "int(e.get('KEY', 3))", None, "4", "from os import environ as e\n")
    yield environment("key of a variable", "int(os.getenv(NAME, 3))", None, "4", "NAME = 'KEY'\n")
    yield environment(
        "environ of a try", "try:\n  k = int(os.environ['KEY'])\nexcept KeyError:\n  k = 3", None, "4"
    )
    yield environment("a copy of environ", "int(dict(os.environ).get('KEY', 3))", None, "4")
    yield environment("environ copy", "int(os.environ.copy().get('KEY', 3))", None, "4")
    yield environment("pop of a copy of environ", "int(dict(os.environ).pop('KEY', 3))", None, "4")
    yield environment("environ setdefault", "int(os.environ.setdefault('KEY', '3'))", None, "4")
    yield environment("length of environ", "len(os.environ)", None, "4")
    yield environment("environb", "int(os.environb.get(b'KEY', 3))", None, "4")
    yield environment("getenvb", "int(os.getenvb(b'KEY', 3))", None, "4")
    yield environment("expandvars", "len(os.path.expandvars('$KEY'))", None, "4")
    yield environment("environ at import", "K", None, "4", "K = int(os.getenv('KEY', '3'))\n")
    yield environment(
        "a function at import",
        "f()",
        None,
        "4",
        "if os.getenv('KEY'):\n  def f(): return 4\nelse:\n  def f(): return 3\n",
    )
    yield environment(
        "a name that is there at import",
        "(2 if hasattr(sys.modules[__name__], 'K') else 3)",
        None,
        "4",
        "if os.getenv('KEY'): K = 4\n",
    )
    yield environment(
        "a default of the environment", "f()", "4", "5", "def f(k=int(os.getenv('KEY', '3'))): return k\n"
    )
    yield environment(
        "a cached function of the environment",
        "f()",
        "4",
        "5",
        "@functools.cache\ndef f(): return int(os.getenv('KEY', '3'))\n",
    )
    yield environment(
        "an lru cache of the environment",
        "f(1)",
        "4",
        "5",
        "@functools.lru_cache(None)\ndef f(a): return a * int(os.getenv('KEY', '3'))\n",
    )
    yield environment(
        "a constant result of the environment",
        "f()",
        "4",
        "5",
        "@torch._dynamo.assume_constant_result\ndef f(): return int(os.getenv('KEY', '3'))\n",
    )


SOURCES: tuple[tuple[str, str, str, str, str], ...] = (
    # name; text of the module; expression; what is changed, and to what.
    ("a number", "", "2", "2", "3"),
    ("a global number", "K = 2", "K", "2", "3"),
    ("a global text", "K = 'ab'", "len(K)", "'ab'", "'abc'"),
    ("a global tuple", "K = (1, 2)", "K[1]", "2)", "3)"),
    ("a global list", "K = [1, 2]", "K[1]", "2]", "3]"),
    ("the length of a global list", "K = [1, 2]", "len(K)", "2]", "2, 3]"),
    ("the truth of a global list", "K = [1]", "(2 if K else 3)", "[1]", "[]"),
    ("a global dict", "K = {'a': 2}", "K['a']", "2", "3"),
    ("a new key of a global dict", "K = {'b': 2}", "(2 if 'a' in K else 3)", "'b':", "'a':"),
    ("get of a global dict", "K = {'b': 2}", "K.get('a', 3)", "'b':", "'a':"),
    (
        "the order of a dict",
        "K = {'a': 2, 'b': 3}",
        "list(K.values())[0]",
        "'a': 2, 'b': 3",
        "'b': 3, 'a': 2",
    ),
    (
        "the first key of a dict",
        "K = {'a': 2, 'b': 3}",
        "K[next(iter(K))]",
        "'a': 2, 'b': 3",
        "'b': 3, 'a': 2",
    ),
    (
        "items of a dict",
        "K = {'a': 2, 'b': 3}",
        "k = 0\nfor n, v in K.items(): k = k * 2 + v",
        "'a': 2, 'b': 3",
        "'b': 3, 'a': 2",
    ),
    ("a global set", "K = {1, 2}", "(2 if 1 in K else 3)", "{1,", "{4,"),
    ("a new member of a global set", "K = {4}", "(2 if 1 in K else 3)", "{4", "{1"),
    ("the length of a global set", "K = {1, 2}", "len(K)", "{1,", "{1, 3,"),
    ("a frozen set", "K = frozenset({1, 2})", "(2 if 1 in K else 3)", "{1,", "{4,"),
    (
        "an ordered dict",
        "K = collections.OrderedDict(a=2, b=3)",
        "list(K.values())[0]",
        "a=2, b=3",
        "b=3, a=2",
    ),
    ("a default dict", "K = collections.defaultdict(lambda: 2)", "K['a']", "2", "3"),
    ("a counter", "K = collections.Counter('aab')", "K['a']", "aab", "ab"),
    ("a deque", "K = collections.deque([1, 2])", "K[0]", "[1", "[3"),
    ("a nested container", "K = {'a': [(1, {'b': 2})]}", "K['a'][0][1]['b']", "2", "3"),
    ("a slice", "K = slice(0, 1)", "x[K].sum()", "1)", "2)"),
    ("a range", "K = range(3)", "sum(K)", "3", "4"),
    ("a dtype", "K = torch.float64", "torch.ones((), dtype=K) * x.to(K)", "torch.float64", "torch.float32"),
    ("a text in an f-string", "K = 'a'", "len(f'{K}')", "'a'", "'ab'"),
    ("a format", "K = '{}'", "len(K.format('ab'))", "'{}'", "'{}{}'.replace('}{', '}a{')[:3]"),
    ("bytes", "K = b'a'", "len(K)", "b'a'", "b'ab'"),
    ("a complex number", "K = 2j", "K.imag", "2j", "3j"),
    ("a signed zero", "K = 0.0", "math.copysign(2, K)", "0.0", "-0.0"),
    ("a bool and a number", "K = 1", "(2 if K is True else 3)", "1", "True"),
    ("a function", "def f(): return 2", "f()", "2", "3"),
    ("a callee of a function", "def g(): return 2\ndef f(): return g()", "f()", "2", "3"),
    ("a nested function", "def f():\n  def g(): return 2\n  return g()", "f()", "return 2", "return 3"),
    ("a lambda", "f = lambda: 2", "f()", "2", "3"),
    ("a lambda in a list", "f = [lambda: 1, lambda: 2]", "f[1]()", "2]", "3]"),
    ("a lambda in a dict", "f = {'a': lambda: 2}", "f['a']()", "2}", "3}"),
    ("a default", "def f(k=2): return k", "f()", "2", "3"),
    ("a default that is a list", "def f(k=[2]): return k[0]", "f()", "2", "3"),
    ("a keyword default", "def f(*, k=2): return k", "f()", "2", "3"),
    (
        "a default of a nested function",
        "K = 2\ndef f():\n  def g(k=K): return k\n  return g()",
        "f()",
        "K = 2",
        "K = 3",
    ),
    ("a closure", "def made(k):\n  def f(): return k\n  return f\nf = made(2)", "f()", "(2)", "(3)"),
    (
        "a closure in a closure",
        "def made(k):\n  def g(): return k\n  def f(): return g()\n  return f\nf = made(2)",
        "f()",
        "(2)",
        "(3)",
    ),
    (
        "a list in a closure",
        "def made(k):\n  def f(): return k[0]\n  return f\nf = made([2])",
        "f()",
        "([2])",
        "([3])",
    ),
    (
        "a dict in a closure",
        "def made(k):\n  def f(): return k.get('a', 2)\n  return f\nf = made({})",
        "f()",
        "({})",
        "({'a': 3})",
    ),
    (
        "a function in a closure",
        "def made(g):\n  def f(): return g()\n  return f\nf = made(lambda: 2)",
        "f()",
        "2)",
        "3)",
    ),
    ("the number of arguments", "K = (1, 2)\ndef f(*k): return len(k)", "f(*K)", "2)", "2, 3)"),
    (
        "an annotation",
        "def f(k: int): return k",
        "(2 if f.__annotations__['k'] is int else 3)",
        "k: int",
        "k: float",
    ),
    ("a new annotation", "def f(k): return k", "(2 if 'k' in f.__annotations__ else 3)", "f(k)", "f(k: int)"),
    ("the number of annotations", "def f(k): return k", "len(f.__annotations__) + 1", "f(k)", "f(k: int)"),
    (
        "annotations through getattr",
        "def f(k): return k",
        "len(getattr(f, '__annotations__')) + 1",
        "f(k)",
        "f(k: int)",
    ),
    ("type hints", "def f(k): return k", "len(typing.get_type_hints(f)) + 1", "f(k)", "f(k: int)"),
    (
        "inspect.get_annotations",
        "def f(k): return k",
        "len(inspect.get_annotations(f)) + 1",
        "f(k)",
        "f(k: int)",
    ),
    (
        "annotations of a class",
        "class C: pass",
        "(2 if 'k' in C.__annotations__ else 3)",
        "class C: pass",
        "class C:\n  k: int",
    ),
    (
        "annotations of a module",
        "J: int = 1",
        "(2 if 'K' in __annotations__ else 3)",
        "J: int = 1",
        "J: int = 1\nK: int = 1",
    ),
    ("a signature", "def f(k): return k", "len(inspect.signature(f).parameters)", "f(k)", "f(k, l=1)"),
    (
        "a default in a signature",
        "def f(k=2): return k",
        "inspect.signature(f).parameters['k'].default",
        "k=2",
        "k=3",
    ),
    (
        "a name in a signature",
        "def f(k): return k",
        "(2 if 'k' in inspect.signature(f).parameters else 3)",
        "f(k): return k",
        "f(l): return l",
    ),
    (
        "the signature of a method",
        "class C:\n  def f(self, k): return k",
        "len(inspect.signature(C.f).parameters)",
        "self, k",
        "self, k, l=1",
    ),
    (
        "the signature of a class",
        "class C:\n  def __init__(self, k): self.k = k",
        "len(inspect.signature(C).parameters)",
        "self, k",
        "self, k, l=1",
    ),
    (
        "inspect.getfullargspec",
        "def f(k): return k",
        "len(inspect.getfullargspec(f).args)",
        "f(k)",
        "f(k, l=1)",
    ),
    ("the argument count of code", "def f(k): return k", "f.__code__.co_argcount", "f(k)", "f(k, l=1)"),
    ("the names of code", "def f(k): return k", "len(f.__code__.co_varnames)", "f(k)", "f(k, l=1)"),
    ("the first line of code", "\ndef f(k): return k", "f.__code__.co_firstlineno", "\ndef f", "\n\ndef f"),
    (
        "the flags of code",
        "def f(k): return k",
        "(2 if inspect.isgeneratorfunction(f) else 3)",
        "return k",
        "yield k",
    ),
    (
        "a coroutine function",
        "def f(k): return k",
        "(2 if inspect.iscoroutinefunction(f) else 3)",
        "def f(k)",
        "async def f(k)",
    ),
    ("defaults", "def f(k=2): return k", "f.__defaults__[0]", "k=2", "k=3"),
    (
        "defaults that are none",
        "def f(k): return k",
        "(2 if f.__defaults__ is None else 3)",
        "f(k)",
        "f(k=1)",
    ),
    ("keyword defaults", "def f(*, k=2): return k", "f.__kwdefaults__['k']", "k=2", "k=3"),
    ("a docstring", "def f():\n  'a'", "len(f.__doc__)", "'a'", "'ab'"),
    ("a docstring that is none", "def f(): pass", "(2 if f.__doc__ is None else 3)", "pass", "'ab'"),
    ("the docstring of a class", "class C:\n  'a'", "len(C.__doc__)", "'a'", "'ab'"),
    ("the docstring of the module", "__doc__ = 'a'", "len(__doc__)", "'a'", "'ab'"),
    (
        "the name of a function",
        "def f(): pass\ng = f",
        "len(g.__name__)",
        "def f(): pass\ng = f",
        "def ff(): pass\ng = ff",
    ),
    (
        "the name of a module",
        "def f(): pass",
        "len(f.__module__)",
        "pass\n",
        "pass\nf.__module__ = 'other'\n",
    ),
    ("an attribute of a function", "def f(): pass\nf.k = 2", "f.k", "2", "3"),
    ("an attribute of a function, new", "def f(): pass", "getattr(f, 'k', 2)", "pass\n", "pass\nf.k = 3\n"),
    ("hasattr of a function", "def f(): pass", "(2 if hasattr(f, 'k') else 3)", "pass\n", "pass\nf.k = 3\n"),
    (
        "what a function wraps",
        "def g(): return 2\ndef f(): return 1\nf.__wrapped__ = g",
        "f.__wrapped__()",
        "return 2",
        "return 3",
    ),
    (
        "a decorator",
        "def d(f):\n  def g(): return f() + 1\n  return g\n@d\ndef f(): return 2",
        "f()",
        "+ 1",
        "+ 2",
    ),
    (
        "one decorator more",
        "def d(f):\n  def g(): return f() + 1\n  return g\n@d\ndef f(): return 2",
        "f()",
        "@d\n",
        "@d\n@d\n",
    ),
    (
        "no decorator",
        "def d(f):\n  @functools.wraps(f)\n  def g(): return f() + 1\n  return g\n@d\ndef f(): return 2",
        "f()",
        "@d\n",
        "",
    ),
    (
        "an argument of a decorator",
        "def d(k):\n  def e(f):\n    @functools.wraps(f)\n    def g(): return f() + k\n    return g\n  return e\n@d(1)\ndef f(): return 2",
        "f()",
        "@d(1)",
        "@d(2)",
    ),
    ("a cached function", "@functools.cache\ndef f(): return 2", "f()", "2", "3"),
    (
        "a callee of a cached function",
        "def g(): return 2\n@functools.cache\ndef f(): return g()",
        "f()",
        "2",
        "3",
    ),
    ("a global of a cached function", "K = 2\n@functools.lru_cache\ndef f(): return K", "f()", "2", "3"),
    ("a default of a cached function", "@functools.cache\ndef f(k=2): return k", "f()", "2", "3"),
    ("a partial", "def f(k): return k\ng = functools.partial(f, 2)", "g()", "2)", "3)"),
    ("a keyword of a partial", "def f(k): return k\ng = functools.partial(f, k=2)", "g()", "=2)", "=3)"),
    (
        "a function of a partial",
        "def f(k): return k\ng = functools.partial(f, 2)",
        "g()",
        "return k",
        "return k + 1",
    ),
    ("a reduction", "f = lambda a, b: a + b", "functools.reduce(f, [1, 2, 3])", "a + b", "a * b + 1"),
    ("a generator", "def f():\n  yield 2", "next(f())", "2", "3"),
    ("a comprehension", "", "sum([i for i in range(3)])", "range(3)", "range(4)"),
    ("a sort key", "f = lambda a: a", "sorted([1, 2, 3], key=f)[0]", "a: a", "a: -a"),
    ("a map", "f = lambda a: a", "sum(map(f, [1, 2]))", "a: a", "a: -a"),
    ("a walrus", "K = 2", "(k := K)", "2", "3"),
    ("a match", "K = 'a'", "match K:\n  case 'a':\n    k = 2\n  case _:\n    k = 3", "K = 'a'", "K = 'b'"),
    (
        "an exception",
        "class E(Exception): pass\nclass D(E): pass\ndef f(): raise D",
        "try:\n  f()\nexcept E:\n  k = 2\nexcept Exception:\n  k = 3",
        "D(E)",
        "D(Exception)",
    ),
    (
        "an exception that is not raised",
        "def f(): return 1",
        "try:\n  k = f()\nexcept ValueError:\n  k = 3",
        "return 1",
        "raise ValueError",
    ),
    (
        "a context manager",
        "class C:\n  def __enter__(self): return 2\n  def __exit__(self, *a): return None",
        "with C() as k: pass",
        "return 2",
        "return 3",
    ),
    (
        "a generator that is a context manager",
        "@contextlib.contextmanager\ndef f(): yield 2",
        "with f() as k: pass",
        "2",
        "3",
    ),
    ("an attribute of a class", "class C: k = 2", "C.k", "2", "3"),
    ("a new attribute of a class", "class C: pass", "getattr(C, 'k', 2)", "pass", "k = 3"),
    ("hasattr of a class", "class C: pass", "(2 if hasattr(C, 'k') else 3)", "pass", "k = 3"),
    ("hasattr of an instance", "class C: pass\nc = C()", "(2 if hasattr(c, 'k') else 3)", "pass", "k = 3"),
    ("a list of a class", "class C: k = [1, 2]", "C.k[0] + len(C.k)", "2]", "2, 3]"),
    ("a dict of a class", "class C: k = {'a': 2}", "C.k['a']", "2}", "3}"),
    ("an attribute of a base", "class A: k = 2\nclass B(A): pass", "B.k", "2", "3"),
    (
        "an attribute that hides that of a base",
        "class A: k = 2\nclass B(A): pass",
        "B.k",
        "(A): pass",
        "(A): k = 3",
    ),
    ("a method", "class C:\n  def f(self): return 2\nc = C()", "c.f()", "2", "3"),
    ("a method of a base", "class A:\n  def f(self): return 2\nclass B(A): pass\nb = B()", "b.f()", "2", "3"),
    (
        "a method that hides that of a base",
        "class A:\n  def f(self): return 2\nclass B(A): pass\nb = B()",
        "b.f()",
        "(A): pass",
        "(A):\n  def f(self): return 3",
    ),
    (
        "super",
        "class A:\n  def f(self): return 2\nclass B(A):\n  def f(self): return super().f()\nb = B()",
        "b.f()",
        "return 2",
        "return 3",
    ),
    (
        "a class between",
        "class A:\n  def f(self): return 2\nclass M(A): pass\nclass B(M):\n  def f(self): return super().f()\nb = B()",
        "b.f()",
        "M(A): pass",
        "M(A):\n  def f(self): return 3",
    ),
    ("a static method", "class C:\n  @staticmethod\n  def f(): return 2", "C.f()", "2", "3"),
    ("a class method", "class C:\n  k = 2\n  @classmethod\n  def f(cls): return cls.k", "C.f()", "2", "3"),
    ("a property", "class C:\n  @property\n  def k(self): return 2\nc = C()", "c.k", "2", "3"),
    (
        "a property of a base",
        "class A:\n  @property\n  def k(self): return 2\nclass B(A): pass\nb = B()",
        "b.k",
        "2",
        "3",
    ),
    (
        "what a property reads",
        "K = 2\nclass C:\n  @property\n  def k(self): return K\nc = C()",
        "c.k",
        "K = 2",
        "K = 3",
    ),
    (
        "a descriptor",
        "class D:\n  def __get__(self, o, t): return 2\nclass C: k = D()\nc = C()",
        "c.k",
        "2",
        "3",
    ),
    (
        "state of a descriptor",
        "class D:\n  def __init__(self, k): self.k = k\n  def __get__(self, o, t): return self.k\nclass C: k = D(2)\nc = C()",
        "c.k",
        "2",
        "3",
    ),
    ("__getattr__", "class C:\n  def __getattr__(self, n): return 2\nc = C()", "c.k", "2", "3"),
    (
        "__getattr__ that reads",
        "K = {'k': 2}\nclass C:\n  def __getattr__(self, n): return K[n]\nc = C()",
        "c.k",
        "2",
        "3",
    ),
    (
        "__getattr__ of a metaclass",
        "class M(type):\n  def __getattr__(cls, n): return 2\nclass C(metaclass=M): pass",
        "C.k",
        "2",
        "3",
    ),
    (
        "a property of a metaclass",
        "class M(type):\n  @property\n  def k(cls): return 2\nclass C(metaclass=M): pass",
        "C.k",
        "2",
        "3",
    ),
    (
        "what a property of a metaclass reads",
        "K = 2\nclass M(type):\n  @property\n  def k(cls): return K\nclass C(metaclass=M): pass",
        "C.k",
        "2",
        "3",
    ),
    (
        "what __getattr__ of a metaclass reads",
        "K = {'k': 2}\nclass M(type):\n  def __getattr__(cls, n): return K[n]\nclass C(metaclass=M): pass",
        "C.k",
        "2",
        "3",
    ),
    ("an attribute of a metaclass", "class M(type): k = 2\nclass C(metaclass=M): pass", "C.k", "2", "3"),
    ("a list of a metaclass", "class M(type): k = [2]\nclass C(metaclass=M): pass", "C.k[0]", "2", "3"),
    (
        "a method of a metaclass",
        "class M(type):\n  def k(cls): return 2\nclass C(metaclass=M): pass",
        "C.k()",
        "2",
        "3",
    ),
    (
        "__len__ of a metaclass",
        "class M(type):\n  def __len__(cls): return 2\nclass C(metaclass=M): pass",
        "len(C)",
        "2",
        "3",
    ),
    (
        "__contains__ of a metaclass",
        "class M(type):\n  def __contains__(cls, k): return k == 2\nclass C(metaclass=M): pass",
        "(2 if 2 in C else 3)",
        "k == 2",
        "k == 3",
    ),
    (
        "__subclasscheck__",
        "class M(type):\n  def __subclasscheck__(cls, o): return True\nclass C(metaclass=M): pass",
        "(2 if issubclass(int, C) else 3)",
        "True",
        "False",
    ),
    (
        "__class_getitem__",
        "class C:\n  def __class_getitem__(cls, k): return 2",
        "C[1]",
        "return 2",
        "return 3",
    ),
    (
        "__init_subclass__",
        "class A:\n  def __init_subclass__(cls): cls.k = 2\nclass B(A): pass",
        "B.k",
        "2",
        "3",
    ),
    ("__set_name__", "class D:\n  def __set_name__(self, o, n): o.k = 2\nclass C: d = D()", "C.k", "2", "3"),
    (
        "__new__",
        "class C:\n  def __new__(cls):\n    o = object.__new__(cls)\n    o.k = 2\n    return o",
        "C().k",
        "2",
        "3",
    ),
    ("a constructor", "class C:\n  def __init__(self): self.k = 2", "C().k", "2", "3"),
    (
        "__post_init__",
        "@dataclasses.dataclass\nclass C:\n  k: int = 1\n  def __post_init__(self): self.k += 2",
        "C().k",
        "2",
        "3",
    ),
    ("an operator of a class", "class C:\n  def __add__(self, k): return 2\nc = C()", "c + 1", "2", "3"),
    ("a reflected operator", "class C:\n  def __radd__(self, k): return 2\nc = C()", "1 + c", "2", "3"),
    ("__call__", "class C:\n  def __call__(self): return 2\nc = C()", "c()", "2", "3"),
    ("__getitem__", "class C:\n  def __getitem__(self, k): return 2\nc = C()", "c[0]", "2", "3"),
    ("__len__", "class C:\n  def __len__(self): return 2\nc = C()", "len(c)", "2", "3"),
    ("__bool__", "class C:\n  def __bool__(self): return True\nc = C()", "(2 if c else 3)", "True", "False"),
    (
        "a new __bool__",
        "class C: pass\nc = C()",
        "(2 if c else 3)",
        "pass",
        "\n  def __bool__(self): return False",
    ),
    ("a new __len__", "class C: pass\nc = C()", "(2 if c else 3)", "pass", "\n  def __len__(self): return 0"),
    (
        "__eq__",
        "class C:\n  def __eq__(self, o): return True\nc = C()",
        "(2 if c == 1 else 3)",
        "True",
        "False",
    ),
    (
        "a new __eq__",
        "class C: pass\nc = C()",
        "(2 if c == 1 else 3)",
        "pass",
        "\n  def __eq__(self, o): return True",
    ),
    (
        "__contains__",
        "class C:\n  def __contains__(self, k): return True\nc = C()",
        "(2 if 1 in c else 3)",
        "True",
        "False",
    ),
    ("__iter__", "class C:\n  def __iter__(self): return iter([1, 2])\nc = C()", "sum(c)", "2]", "3]"),
    ("__repr__", "class C:\n  def __repr__(self): return 'a'\nc = C()", "len(repr(c))", "'a'", "'ab'"),
    ("__str__", "class C:\n  def __str__(self): return 'a'\nc = C()", "len(str(c))", "'a'", "'ab'"),
    ("__hash__", "class C:\n  def __hash__(self): return 2\nc = C()", "hash(c)", "2", "3"),
    ("__index__", "class C:\n  def __index__(self): return 2\nc = C()", "[1, 2, 3][c]", "2", "1"),
    ("__slots__", "class C:\n  __slots__ = ('k',)\nc = C()", "len(C.__slots__) + 1", "('k',)", "('k', 'l')"),
    ("bases", "class A: pass\nclass B(A): pass\nb = B()", "(2 if isinstance(b, A) else 3)", "B(A)", "B"),
    ("issubclass", "class A: pass\nclass B(A): pass", "(2 if issubclass(B, A) else 3)", "B(A)", "B"),
    ("the order of bases", "class A: k = 2\nclass B: k = 3\nclass C(A, B): pass", "C.k", "(A, B)", "(B, A)"),
    ("__mro__", "class A: pass\nclass B(A): pass", "len(B.__mro__)", "B(A)", "B"),
    ("__bases__", "class A: pass\nclass D: pass\nclass B(A): pass", "len(B.__bases__)", "B(A)", "B(A, D)"),
    ("__subclasses__", "class A: pass\nclass B(A): pass", "len(A.__subclasses__()) + 1", "B(A)", "B"),
    (
        "the name of a class",
        "class C: pass\nD = C",
        "len(D.__name__)",
        "class C: pass\nD = C",
        "class CC: pass\nD = CC",
    ),
    (
        "the name of a type",
        "class C: pass\nc = C()",
        "len(type(c).__name__)",
        "class C: pass\nc = C()",
        "class CC: pass\nc = CC()",
    ),
    ("the dict of a class", "class C: pass", "(2 if 'k' in C.__dict__ else 3)", "pass", "k = 3"),
    ("vars of a class", "class C: pass", "(2 if 'k' in vars(C) else 3)", "pass", "k = 3"),
    ("dir of a class", "class C: pass", "(2 if 'k' in dir(C) else 3)", "pass", "k = 3"),
    ("inspect.getmembers", "class C: pass", "len(inspect.getmembers(C))", "pass", "k = 3"),
    ("inspect.getattr_static", "class C: pass", "inspect.getattr_static(C, 'k', 2)", "pass", "k = 3"),
    (
        "callable",
        "class C: pass\nc = C()",
        "(2 if callable(c) else 3)",
        "pass",
        "\n  def __call__(self): return 1",
    ),
    (
        "registered as one of an abstract class",
        "class A(abc.ABC): pass\nclass B: pass\nA.register(B)",
        "(2 if issubclass(B, A) else 3)",
        "A.register(B)",
        "B",
    ),
    (
        "an instance of an abstract class",
        "class A(abc.ABC): pass\nclass B: pass\nA.register(B)\nb = B()",
        "(2 if isinstance(b, A) else 3)",
        "A.register(B)",
        "B",
    ),
    (
        "__subclasshook__",
        "class A(abc.ABC):\n  @classmethod\n  def __subclasshook__(cls, o): return True\nclass B: pass\nb = B()",
        "(2 if isinstance(b, A) else 3)",
        "True",
        "False",
    ),
    (
        "an abstract class of collections",
        "class B: pass\nb = B()",
        "(2 if isinstance(b, collections.abc.Sized) else 3)",
        "B: pass",
        "B:\n  def __len__(self): return 1",
    ),
    (
        "a protocol",
        "@typing.runtime_checkable\nclass P(typing.Protocol):\n  def f(self): ...\nclass B: pass\nb = B()",
        "(2 if isinstance(b, P) else 3)",
        "B: pass",
        "B:\n  def f(self): return 1",
    ),
    (
        "abstract methods",
        "class A(abc.ABC):\n  def f(self): ...",
        "len(A.__abstractmethods__) + 1",
        "  def f",
        "  @abc.abstractmethod\n  def f",
    ),
    (
        "inspect.isabstract",
        "class A(abc.ABC):\n  def f(self): ...",
        "(2 if inspect.isabstract(A) else 3)",
        "  def f",
        "  @abc.abstractmethod\n  def f",
    ),
    ("a member of an enum", "class E(enum.Enum):\n  A = 2", "E.A.value", "2", "3"),
    ("the number of members of an enum", "class E(enum.Enum):\n  A = 2", "len(E)", "A = 2", "A = 2\n  B = 3"),
    (
        "a name of an enum",
        "class E(enum.Enum):\n  A = 2\n  B = 3",
        "E['A'].value",
        "A = 2\n  B = 3",
        "B = 2\n  A = 3",
    ),
    ("an enum of integers", "class E(enum.IntEnum):\n  A = 2", "E.A + 1", "2", "3"),
    (
        "flags",
        "class E(enum.Flag):\n  A = 1\n  B = 2",
        "(2 if E.A in E(1) else 3)",
        "A = 1\n  B = 2",
        "B = 1\n  A = 2",
    ),
    (
        "an automatic enum",
        "class E(enum.Enum):\n  A = enum.auto()\n  B = enum.auto()",
        "E.B.value",
        "A = enum.auto()\n  B = enum.auto()",
        "B = enum.auto()\n  A = enum.auto()",
    ),
    ("the name of a member", "class E(enum.Enum):\n  A = 2\ne = E(2)", "len(e.name)", "A = 2", "AA = 2"),
    (
        "a method of an enum",
        "class E(enum.Enum):\n  A = 1\n  def f(self): return 2",
        "E.A.f()",
        "return 2",
        "return 3",
    ),
    (
        "members of an enum",
        "class E(enum.Enum):\n  A = 1",
        "(2 if 'B' in E.__members__ else 3)",
        "A = 1",
        "A = 1\n  B = 2",
    ),
    (
        "an iteration over an enum",
        "class E(enum.Enum):\n  A = 1\n  B = 2",
        "[e.value for e in E][0]",
        "A = 1\n  B = 2",
        "B = 2\n  A = 1",
    ),
    ("a field of a dataclass", "@dataclasses.dataclass\nclass C:\n  k: int = 2\nc = C()", "c.k", "2", "3"),
    (
        "a factory of a field",
        "@dataclasses.dataclass\nclass C:\n  k: list = dataclasses.field(default_factory=lambda: [2])",
        "C().k[0]",
        "[2]",
        "[3]",
    ),
    (
        "asdict",
        "@dataclasses.dataclass\nclass C:\n  k: int = 2\nc = C()",
        "dataclasses.asdict(c)['k']",
        "2",
        "3",
    ),
    (
        "replace",
        "@dataclasses.dataclass\nclass C:\n  k: int = 2\n  l: int = 3\nc = C()",
        "dataclasses.replace(c, k=1).l",
        "3",
        "4",
    ),
    (
        "is_dataclass",
        "@dataclasses.dataclass\nclass C:\n  k: int = 2",
        "(2 if dataclasses.is_dataclass(C) else 3)",
        "@dataclasses.dataclass\n",
        "",
    ),
    (
        "a frozen dataclass",
        "@dataclasses.dataclass\nclass C:\n  k: int = 2\nc = C()",
        "(2 if C.__dataclass_params__.frozen else 3)",
        "dataclass\n",
        "dataclass(frozen=True)\n",
    ),
    (
        "an order of a dataclass",
        "@dataclasses.dataclass(order=True)\nclass C:\n  a: int\n  b: int\n",
        "(2 if C(a=1, b=2) < C(a=2, b=1) else 3)",
        "a: int\n  b: int",
        "b: int\n  a: int",
    ),
    ("a named tuple", "T = collections.namedtuple('T', 'a b')", "T(2, 3).a", "a b", "b a"),
    ("a default of a named tuple", "class T(typing.NamedTuple):\n  a: int = 2", "T().a", "2", "3"),
    (
        "fields of a named tuple",
        "T = collections.namedtuple('T', 'a b', defaults=(1, 2))",
        "len(T._fields)",
        "'a b'",
        "'a b c'",
    ),
    (
        "a typed dict",
        "class T(typing.TypedDict):\n  a: int",
        "len(T.__annotations__)",
        "a: int",
        "a: int\n  b: int",
    ),
    ("a generic alias", "K = list[int]", "(2 if K.__args__[0] is int else 3)", "[int]", "[float]"),
    ("get_args", "K = list[int]", "(2 if typing.get_args(K)[0] is int else 3)", "[int]", "[float]"),
    ("a literal type", "K = typing.Literal[2]", "typing.get_args(K)[0]", "[2]", "[3]"),
    (
        "a name that is there",
        "",
        "(2 if hasattr(sys.modules['MODULE'], 'K') else 3)",
        "\nclass Model",
        "\nK = 3\nclass Model",
    ),
    (
        "a name of vars of a module",
        "",
        "vars(sys.modules['MODULE']).get('K', 2)",
        "\nclass Model",
        "\nK = 3\nclass Model",
    ),
    (
        "a name in dir of a module",
        "",
        "(2 if 'K' in dir(sys.modules['MODULE']) else 3)",
        "\nclass Model",
        "\nK = 3\nclass Model",
    ),
    (
        "the dict of a module",
        "",
        "(2 if 'K' in sys.modules['MODULE'].__dict__ else 3)",
        "\nclass Model",
        "\nK = 3\nclass Model",
    ),
    (
        "a name that hides a builtin",
        "",
        "len([1, 2])",
        "\nclass Model",
        "\ndef len(k): return 3\nclass Model",
    ),
    (
        "a default of a module's name",
        "",
        "getattr(sys.modules['MODULE'], 'K', 2)",
        "\nclass Model",
        "\nK = 3\nclass Model",
    ),
    (
        "a new method of the model",
        "",
        "(self.f() if hasattr(self, 'f') else 2)",
        "  def forward",
        "  def f(self): return 3\n  def forward",
    ),
    (
        "a new attribute of the model",
        "",
        "getattr(self, 'k', 2)",
        "\n  def forward",
        "\n  k = 3\n  def forward",
    ),
)
"""Changes of the text of a module."""


AFTER_IMPORT: tuple[tuple[str, str, str, str], ...] = (
    # name; text of the module; expression; what the other process runs after the import.
    ("a global that is set", "K = 2", "K", "m.K = 3"),
    ("a global that is new", "", "getattr(sys.modules['MODULE'], 'K', 2)", "m.K = 3"),
    ("a list that is appended to", "K = [1, 2]", "len(K)", "m.K.append(3)"),
    ("a dict that is updated", "K = {}", "K.get('a', 2)", "m.K['a'] = 3"),
    ("a set that is updated", "K = set()", "(2 if 1 in K else 3)", "m.K.add(1)"),
    ("a dict in another order", "K = {'a': 2, 'b': 3}", "next(iter(K.values()))", "m.K['a'] = m.K.pop('a')"),
    ("a function that is replaced", "def f(): return 2", "f()", "m.f = lambda: 3"),
    ("code that is replaced", "def f(): return 2\ndef g(): return 3", "f()", "m.f.__code__ = m.g.__code__"),
    ("defaults that are set", "def f(k=2): return k", "f()", "m.f.__defaults__ = (3,)"),
    ("keyword defaults that are set", "def f(*, k=2): return k", "f()", "m.f.__kwdefaults__ = {'k': 3}"),
    (
        "annotations that are set",
        "def f(k: int): return k",
        "(2 if f.__annotations__['k'] is int else 3)",
        "m.f.__annotations__ = {'k': float}",
    ),
    ("an attribute of a function that is set", "def f(): pass", "getattr(f, 'k', 2)", "m.f.k = 3"),
    (
        "a cell that is set",
        "def made(k):\n  def f(): return k\n  return f\nf = made(2)",
        "f()",
        "m.f.__closure__[0].cell_contents = 3",
    ),
    (
        "a method that is replaced",
        "class C:\n  def f(self): return 2\nc = C()",
        "c.f()",
        "m.C.f = lambda self: 3",
    ),
    ("a method of an instance", "class C:\n  def f(self): return 2\nc = C()", "c.f()", "m.c.f = lambda: 3"),
    (
        "a method of a base that is replaced",
        "class A:\n  def f(self): return 2\nclass B(A): pass\nb = B()",
        "b.f()",
        "m.A.f = lambda self: 3",
    ),
    (
        "a method that comes between",
        "class A:\n  def f(self): return 2\nclass B(A): pass\nb = B()",
        "b.f()",
        "m.B.f = lambda self: 3",
    ),
    (
        "a static method that is replaced",
        "class C:\n  @staticmethod\n  def f(): return 2",
        "C.f()",
        "m.C.f = staticmethod(lambda: 3)",
    ),
    (
        "a method of a class of Python's",
        "K = string.Formatter()",
        "K.get_value(0, [2], {})",
        "m.string.Formatter.get_value = lambda *k: 3",
    ),
    ("a class attribute that is set", "class C: k = 2", "C.k", "m.C.k = 3"),
    ("a class attribute that is new", "class C: pass", "getattr(C, 'k', 2)", "m.C.k = 3"),
    ("a class attribute that is deleted", "class A: k = 3\nclass B(A): k = 2", "B.k", "del m.B.k"),
    (
        "a metaclass attribute that is set",
        "class M(type): k = 2\nclass C(metaclass=M): pass",
        "C.k",
        "m.M.k = 3",
    ),
    (
        "a metaclass attribute that is hidden",
        "class M(type): k = 2\nclass C(metaclass=M): pass",
        "C.k",
        "m.C.k = 3",
    ),
    (
        "a property that is replaced",
        "class C:\n  @property\n  def k(self): return 2\nc = C()",
        "c.k",
        "m.C.k = property(lambda self: 3)",
    ),
    (
        "bases that are set",
        "class A: k = 2\nclass D: k = 3\nclass B(A): pass",
        "B.k",
        "m.B.__bases__ = (m.D,)",
    ),
    ("a class that is replaced", "class C: k = 2\nclass D: k = 3", "C.k", "m.C = m.D"),
    ("the class of an instance", "class C: k = 2\nclass D: k = 3\nc = C()", "c.k", "m.c.__class__ = m.D"),
    ("an attribute of an instance", "class C: pass\nc = C()\nc.k = 2", "c.k", "m.c.k = 3"),
    (
        "values in the dict of an object",
        "class C: pass\nc = C()\nc.j = 2",
        "k = 0\nfor n, v in c.__dict__.items(): k = k + v",
        "m.c.j = 3",
    ),
    ("a value in the dict of an object", "class C: pass\nc = C()\nc.j = 2", "c.__dict__['j']", "m.c.j = 3"),
    ("values of vars", "class C: pass\nc = C()\nc.j = 2", "sum(vars(c).values())", "m.c.j = 3"),
    ("an attribute of an instance that is new", "class C: k = 2\nc = C()", "c.k", "m.c.k = 3"),
    ("an attribute of a namespace", "c = types.SimpleNamespace(k=2)", "c.k", "m.c.k = 3"),
    (
        "a registration",
        "class A(abc.ABC): pass\nclass B: pass\nb = B()",
        "(2 if isinstance(b, A) else 3)",
        "m.A.register(m.B)",
    ),
    ("a subclass that is new", "class A: pass", "len(A.__subclasses__()) + 1", "m.D = type('D', (m.A,), {})"),
    (
        "a constant put into builtins",
        "builtins.KEY = 2",
        "KEY",
        "m.builtins.KEY = 3",
    ),
    ("a builtin that is hidden", "", "len([1, 2])", "m.len = lambda k: 3"),
    ("a global of another module", "import other_KEY as o", "o.K", "m.o.K = 3"),
    ("a function of another module", "import other_KEY as o", "o.f()", "m.o.f = lambda: 3"),
    (
        "a name of another module that is new",
        "import other_KEY as o",
        "(2 if hasattr(o, 'new') else 3)",
        "m.o.new = 3",
    ),
    (
        "a name in dir of another module",
        "import other_KEY as o",
        "(2 if 'new' in dir(o) else 3)",
        "m.o.new = 3",
    ),
    (
        "a key of sys.modules",
        "",
        "(2 if 'fresh_KEY' in sys.modules else 3)",
        "import sys; sys.modules['fresh_KEY'] = sys",
    ),
    ("an attribute of sys", "", "(2 if hasattr(sys, 'KEY') else 3)", "import sys; sys.KEY = 3"),
    ("an attribute of os", "", "getattr(os, 'KEY', 2)", "import os; os.KEY = 3"),
    ("an attribute of math", "", "getattr(math, 'KEY', 2)", "import math; math.KEY = 3"),
    (
        "a new variable of the environment",
        "",
        "int(os.environ.get('KEY_LATE', 2))",
        "import os; os.environ['KEY_LATE'] = '3'",
    ),
    (
        "a new variable through getenv",
        "",
        "int(os.getenv('KEY_LATE', 2))",
        "import os; os.environ['KEY_LATE'] = '3'",
    ),
    ("an attribute of the model", "class K: k = 2", "getattr(self, 'k', 2)", "model.k = 3"),
    ("hasattr of the model", "", "(2 if hasattr(self, 'k') else 3)", "model.k = 3"),
    ("a name in the dict of the model", "", "(2 if 'k' in self.__dict__ else 3)", "model.k = 3"),
    ("train", "", "(2 if self.training else 3)", "model.train()"),
    ("a dtype", "", "self.w if hasattr(self, 'w') else 2", "model.w = torch.ones((), dtype=torch.float64)"),
    (
        "a default dtype",
        "",
        "torch.ones(4).sum() * torch.get_default_dtype().itemsize",
        "torch.set_default_dtype(torch.float64)",
    ),
    (
        "deterministic algorithms",
        "",
        "(2 if torch.are_deterministic_algorithms_enabled() else 3)",
        "torch.use_deterministic_algorithms(True)",
    ),
    (
        "a flag of cudnn",
        "",
        "(2 if torch.backends.cudnn.enabled else 3)",
        "torch.backends.cudnn.enabled = False",
    ),
    (
        "benchmark of cudnn",
        "",
        "(2 if torch.backends.cudnn.benchmark else 3)",
        "torch.backends.cudnn.benchmark = True",
    ),
    (
        "tf32 of cuda",
        "",
        "(2 if torch.backends.cuda.matmul.allow_tf32 else 3)",
        "torch.backends.cuda.matmul.allow_tf32 = True",
    ),
    (
        "a flag of mkldnn",
        "",
        "(2 if torch.backends.mkldnn.enabled else 3)",
        "torch.backends.mkldnn.enabled = False",
    ),
    ("a version of torch", "", "len(torch.__version__)", "torch.__version__ = 'other'"),
    (
        "a version of another module",
        "import other_KEY as o",
        "len(o.__version__)",
        "m.o.__version__ = '1.10'",
    ),
    ("a method put into tensors", "", "(2 if hasattr(torch.Tensor, 'KEY') else 3)", "torch.Tensor.KEY = 3"),
    ("the limit of recursion", "", "sys.getrecursionlimit()", "import sys; sys.setrecursionlimit(1234)"),
    ("digits of numbers", "", "sys.get_int_max_str_digits()", "import sys; sys.set_int_max_str_digits(5000)"),
    ("a function put into torch", "", "(2 if hasattr(torch, 'KEY') else 3)", "torch.KEY = 3"),
    ("the recursion limit", "K = sys.getrecursionlimit()", "K", "m.K = 3"),
    ("a variable of the thread", "K = threading.local()\nK.k = 2", "K.k", "m.K.k = 3"),
    ("a user's string.Template", "K = string.Template('a')", "len(K.template)", "m.K.template = 'ab'"),
    (
        "a date",
        "K = datetime.date(2020, 1, 2)",
        "K.day",
        "m.K = datetime.date(2020, 1, 3)".replace("datetime", "m.datetime"),
    ),
    ("a path", "K = pathlib.PurePosixPath('/a')", "len(str(K))", "m.K = m.pathlib.PurePosixPath('/ab')"),
    ("a weak reference", "import weakref\nclass C: k = 2\nc = C()\nK = weakref.ref(c)", "K().k", "m.C.k = 3"),
    ("a numpy number", "import numpy as np\nK = np.float64(2)", "float(K)", "m.K = m.np.float64(3)"),
    (
        "a numpy array",
        "import numpy as np\nK = np.array([2.])",
        "float(K.shape[0] + 1)",
        "m.K = m.np.zeros(2)",
    ),
    ("a global tensor's shape", "K = torch.ones(2)", "K.shape[0]", "m.K = torch.ones(3)"),
    ("a global tensor's values", "K = torch.ones(4)", "K", "m.K = torch.ones(4) * 3"),
    ("a global tensor's stride", "K = torch.ones(2, 2)", "K.stride(0)", "m.K = torch.ones(4, 4)[::2, ::2]"),
    (
        "a global tensor that needs gradients",
        "K = torch.ones(())",
        "(2 if K.requires_grad else 3)",
        "m.K.requires_grad_()",
    ),
)
"""Changes of the process after the import."""
TENSORS: tuple[tuple[str, str, str], ...] = (
    # name; the body of the model; what the other process runs after the import.
    (
        "tied weights",
        "  def __init__(self):\n    super().__init__()\n    self.a = nn.Linear(4, 4, bias=False)\n    self.b = nn.Linear(4, 4, bias=False)\n    self.b.weight = self.a.weight\n  def forward(self, x): return self.a(x) - self.b(x)",
        "model.b = m.nn.Linear(4, 4, bias=False)",
    ),
    (
        "weights that are tied",
        "  def __init__(self):\n    super().__init__()\n    self.a = nn.Linear(4, 4, bias=False)\n    self.b = nn.Linear(4, 4, bias=False)\n  def forward(self, x): return self.a(x) - self.b(x)",
        "model.b.weight = model.a.weight",
    ),
    (
        "a parameter of another dtype",
        "  def __init__(self):\n    super().__init__()\n    self.w = nn.Parameter(torch.ones(4))\n  def forward(self, x): return x * self.w",
        "model.double()",
    ),
    (
        "a parameter that needs no gradients",
        "  def __init__(self):\n    super().__init__()\n    self.w = nn.Parameter(torch.ones(4))\n  def forward(self, x): return x * (2 if self.w.requires_grad else 3)",
        "model.requires_grad_(False)",
    ),
    (
        "a buffer with other strides",
        "  def __init__(self):\n    super().__init__()\n    self.register_buffer('w', torch.ones(2, 4))\n  def forward(self, x): return x * self.w.stride(0)",
        "model.w = torch.ones(2, 8)[:, ::2]",
    ),
    (
        "a buffer that is none",
        "  def __init__(self):\n    super().__init__()\n    self.register_buffer('w', torch.ones(4))\n  def forward(self, x): return x * (2 if self.w is None else 3)",
        "model.w = None",
    ),
    (
        "a buffer that is not persistent",
        "  def __init__(self):\n    super().__init__()\n    self.register_buffer('w', torch.ones(4), persistent=False)\n  def forward(self, x): return x * self.w",
        "model.w.mul_(3)",
    ),
    (
        "a constant of a plain tensor",
        "  def __init__(self):\n    super().__init__()\n    self.w = torch.ones(4)\n  def forward(self, x): return x * self.w",
        "model.w = torch.ones(4) * 3",
    ),
    (
        "a number of the model",
        "  def __init__(self):\n    super().__init__()\n    self.k = 2\n  def forward(self, x): return x * self.k",
        "model.k = 3",
    ),
    (
        "a list of the model",
        "  def __init__(self):\n    super().__init__()\n    self.k = [1, 2]\n  def forward(self, x): return x * self.k[1]",
        "model.k[1] = 3",
    ),
    (
        "a layer that is replaced",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.ReLU()\n  def forward(self, x): return self.l(x - 2)",
        "model.l = m.nn.Tanh()",
    ),
    (
        "a layer in training",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.BatchNorm1d(4)\n  def forward(self, x): return self.l(x)",
        "model.l.train()",
    ),
    (
        "an option of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.LeakyReLU(0.1)\n  def forward(self, x): return self.l(x - 2)",
        "model.l.negative_slope = 0.2",
    ),
    (
        "an epsilon of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.LayerNorm(4)\n  def forward(self, x): return self.l(x)",
        "model.l.eps = 0.5",
    ),
    (
        "a forward of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.ReLU()\n  def forward(self, x): return self.l(x)",
        "model.l.forward = lambda x: x * 3",
    ),
    (
        "a hook of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.ReLU()\n  def forward(self, x): return self.l(x)",
        "model.l.register_forward_hook(lambda s, a, o: o * 3)",
    ),
    (
        "a hook before a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.ReLU()\n  def forward(self, x): return self.l(x)",
        "model.l.register_forward_pre_hook(lambda s, a: (a[0] * 3,))",
    ),
    (
        "a parametrization",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return self.l(x)",
        "import torch.nn.utils.parametrize as p; p.register_parametrization(model.l, 'weight', m.nn.Tanh())",
    ),
    (
        "the class of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.ReLU()\n  def forward(self, x): return self.l(x - 2)",
        "model.l.__class__ = m.nn.Tanh",
    ),
    (
        "the order of layers",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.ModuleDict({'a': nn.ReLU(), 'b': nn.Sigmoid()})\n  def forward(self, x):\n    for l in self.l.values(): x = l(x - 2)\n    return x",
        "model.l.move = 0; model.l['a'] = model.l.pop('a')",
    ),
    (
        "the number of heads",
        "  def __init__(self):\n    super().__init__()\n    self.h = 2\n  def forward(self, x): return x.view(-1, self.h).sum(0)",
        "model.h = 4",
    ),
    (
        "a config of the model",
        "  def __init__(self):\n    super().__init__()\n    self.c = types.SimpleNamespace(k=2)\n  def forward(self, x): return x * self.c.k",
        "model.c.k = 3",
    ),
    (
        "a default of a config",
        "  def __init__(self):\n    super().__init__()\n    self.c = types.SimpleNamespace()\n  def forward(self, x): return x * getattr(self.c, 'k', 2)",
        "model.c.k = 3",
    ),
    (
        "a config in a dict",
        "  def __init__(self):\n    super().__init__()\n    self.c = {}\n  def forward(self, x): return x * self.c.get('k', 2)",
        "model.c['k'] = 3",
    ),
    (
        "parameters",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(list(self.parameters())))",
        "model.l.extra = torch.nn.Parameter(torch.ones(4))",
    ),
    (
        "names of parameters",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (sum([len(n) for n, _ in self.named_parameters()]))",
        "model.extra = torch.nn.Parameter(torch.ones(4))",
    ),
    (
        "buffers",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(list(self.buffers())) + 1)",
        "model.register_buffer('b', torch.ones(4))",
    ),
    (
        "children",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(list(self.children())))",
        "model.m = m.nn.ReLU()",
    ),
    (
        "modules",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(list(self.modules())))",
        "model.m = m.nn.ReLU()",
    ),
    (
        "names of modules",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (sum([len(n) for n, _ in self.named_modules()]))",
        "model.m = m.nn.ReLU()",
    ),
    (
        "the table of modules",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(self._modules))",
        "model.m = m.nn.ReLU()",
    ),
    (
        "the table of parameters",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(self.l._parameters))",
        "model.l.extra = torch.nn.Parameter(torch.ones(4))",
    ),
    (
        "a name in the table of buffers",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * ((2 if 'b' in self._buffers else 3))",
        "model.register_buffer('b', torch.ones(4))",
    ),
    (
        "get of the table of buffers",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * ((2 if self._buffers.get('b') is None else 3))",
        "model.register_buffer('b', torch.ones(4))",
    ),
    (
        "hasattr of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * ((2 if hasattr(self.l, 'k') else 3))",
        "model.l.k = 3",
    ),
    (
        "a default of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (getattr(self.l, 'k', 2))",
        "model.l.k = 3",
    ),
    (
        "a dict of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * ((2 if 'k' in self.l.__dict__ else 3))",
        "model.l.k = 3",
    ),
    (
        "a submodule",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * ((2 if self.get_submodule('l').bias is None else 3))",
        "model.l.bias = None",
    ),
    (
        "the hooks of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(self.l._forward_hooks) + 1)",
        "model.l.register_forward_hook(lambda *a: None)",
    ),
    (
        "a size of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (self.l.out_features)",
        "model.l.out_features = 5",
    ),
    (
        "the type of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(type(self.l).__name__))",
        "model.l = m.nn.Identity()",
    ),
    (
        "the text of a layer",
        "  def __init__(self):\n    super().__init__()\n    self.l = nn.Linear(4, 4)\n  def forward(self, x): return x * (len(self.l.extra_repr()))",
        "model.l.out_features = 50",
    ),
)
"""Changes of a model."""
CALLS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # name; expression; the call and what it is then; what is around it and what that is then.
    ("a shape", "2", "x", "x[:1]", "", ""),
    ("another dtype", "2", "x", "x.double()", "", ""),
    ("a stride", "2", "x", "x.T.contiguous().T", "", ""),
    ("a rank", "x.dim()", "x", "x[0]", "", ""),
    ("an integer", "k", "x, 2", "x, 3", "", ""),
    ("a float", "k", "x, 2.5", "x, 3.5", "", ""),
    ("a bool", "(2 if k is True else 3)", "x, True", "x, 1", "", ""),
    ("none", "(2 if k is None else 3)", "x, None", "x, 1", "", ""),
    ("a keyword", "k", "x, k=2", "x, k=3", "", ""),
    ("no argument", "k", "x, 2", "x", "", ""),
    ("a list", "len(k)", "x, [1, 2]", "x, [1, 2, 3]", "", ""),
    ("a type of a container", "(2 if isinstance(k, list) else 3)", "x, [1]", "x, (1,)", "", ""),
    ("a dict", "k.get('a', 2)", "x, {}", "x, {'a': 3}", "", ""),
    ("a text", "len(k)", "x, 'ab'", "x, 'abc'", "", ""),
    (
        "a tensor that needs gradients",
        "(2 if x.requires_grad else 3)",
        "x",
        "x.clone().requires_grad_()",
        "",
        "",
    ),
    (
        "a parameter for a tensor",
        "(2 if isinstance(x, nn.Parameter) else 3)",
        "x",
        "torch.nn.Parameter(x)",
        "",
        "",
    ),
    ("one tensor twice", "(2 if x is k else 3)", "x, x + 0", "x, x", "", ""),
    (
        "a default device",
        "len(torch.ones(4).device.type)",
        "x",
        "x",
        "torch.device('cpu')",
        "torch.device('meta')",
    ),
    ("autocast", "(x @ x.T).sum()", "x", "x", "", "torch.autocast('cpu', dtype=torch.bfloat16)"),
    (
        "a type of autocast",
        "(x @ x.T).sum()",
        "x",
        "x",
        "torch.autocast('cpu', dtype=torch.float16)",
        "torch.autocast('cpu', dtype=torch.bfloat16)",
    ),
    (
        "is_autocast_enabled",
        "(2 if torch.is_autocast_enabled('cpu') else 3)",
        "x",
        "x",
        "",
        "torch.autocast('cpu', dtype=torch.bfloat16)",
    ),
    (
        "get_autocast_dtype",
        "torch.get_autocast_dtype('cpu').itemsize * (3 if torch.is_autocast_enabled('cpu') else 2)",
        "x",
        "x",
        "",
        "torch.autocast('cpu', dtype=torch.bfloat16)",
    ),
)
"""Changes of the call and of what is around it."""
OPTIONS: tuple[tuple[str, str], ...] = (
    ("mode", "config.mode = 'max-autotune'"),
    ("codegen", "config.engine_config.codegen = 'reference'; config.mode = 'max-autotune'"),
    ("a switch of a pass", "config.inference_config.dynamic_gears_merge_policy = 'zip'"),
    ("frozen parameters", "config.experimental_config.frozen_parameter = True"),
    ("views", "config.experimental_config.enable_view_optimize = False"),
    ("tiling", "config.experimental_config.tiling_schedule_optimize = True"),
)
"""Changes of the options."""
SAME: tuple[tuple[str, str, str, str, str], ...] = (
    # name; text of the module; expression; what is changed, and to what: an entry must be found again.
    ("a comment", "# a", "2", "# a", "# b\n\n# c"),
    ("a comment in forward", "", "k = 2  # a\npass", "# a", "# another"),
    ("an unused function", "def g(): return 2", "2", "def g(): return 2", "def g(): return 3"),
    ("an unused class", "class D: pass", "2", "class D: pass", "class D: k = 3"),
    ("an unused global", "J = 2", "2", "J = 2", "J = 3"),
    ("a new global", "", "2", "\nclass Model", "\nJ = 3\nclass Model"),
    ("spaces", "def f(): return 2", "f()", "(): return 2", "():\n\n  return (2)"),
    ("an import", "", "2", "\nclass Model", "\nimport json\nclass Model"),
    ("an attribute of a class nobody reads", "class C:\n  k = 2", "C.k", "k = 2", "k = 2\n  l = 3"),
    (
        "a docstring nobody reads",
        "def f(): return 2",
        "f()",
        "def f(): return 2",
        "def f(): return 2\nf.__doc__ = 'a'",
    ),
    ("annotations nobody reads", "def f(k): return 2", "f(1)", "def f(k)", "def f(k: int)"),
)
"""Changes that are none."""


def _rows() -> Iterator[Row]:
    yield from _environment()
    for row in SOURCES:
        yield source(*row)
    for name, text, expression, act in AFTER_IMPORT:
        more = {"other_KEY.py": (OTHER, OTHER)} if "other_KEY" in text else {}
        yield process(f"after: {name}", text, expression, act, more=more, last=RESET)
    for name, text, old, new in MODULES:
        yield Row(name, "import other_KEY as o\n" + model(text), more={"other_KEY.py": (old, new)})
    yield Row(
        "version of a package",
        model("len(importlib.metadata.version('MODULE'))"),
        more={
            "MODULE-1.0.dist-info/METADATA": (
                "Metadata-Version: 2.1\nName: MODULE\nVersion: 1.0\n",
                "Metadata-Version: 2.1\nName: MODULE\nVersion: 1.0.1\n",
            )
        },
    )
    yield Row(
        "a package",
        model("(2 if importlib.util.find_spec('late_MODULE') is None else 3)"),
        first=("", "import pathlib, sys; pathlib.Path(sys.path[0], 'late_MODULE.py').touch()"),
    )
    yield Row(
        "the order of a set",
        "K = {'a', 'bc', 'def', 'ghij'}\n" + model("k = 0\nfor n in K: k = k * 3 + len(n)"),
        kept=False,
    )
    yield Row("hash of a text", model("(hash('a') % 97 + 1)"), kept=False)
    yield Row("an address", model("(id(Model) % 97 + 1)"), kept=False)
    for of, what in DICTS.items():
        for name, expression in DICT_READS.items():
            whole = model(expression.replace("OF", what))
            text = (
                "import other_KEY as o\nclass C:\n  def __init__(self): self.j = 2\nc = C()\nclass D: pass\n"
            )
            act = {"self": "model.k = 3", "c": "m.c.k = 3", "D": "m.D.k = 3", "o": "m.o.new = m.o.k"}[what]
            if what == "o":
                whole = whole.replace("'k'", "'new'").replace("o.k", "o.new")
            yield Row(
                f"dict of {of}: {name}",
                text + whole,
                more={"other_KEY.py": (OTHER, OTHER)},
                then=("", act),
            )
    for name, body, act in TENSORS:
        yield Row(f"model: {name}", f"\nclass Model(nn.Module):\n{body}\n", then=("", act))
    for name, expression, call, then, around, then_around in CALLS:
        text = model(expression).replace("forward(self, x)", "forward(self, x, k=4)")
        yield Row(f"call: {name}", text, call=(call, then), context=(around, then_around))
    for name, act in OPTIONS:
        yield Row(f"option: {name}", model("2"), options=("", act))
    for name, text, expression, old, new in SAME:
        yield source(f"same: {name}", text, expression, old, new, same=True)


OTHER = "K = 2\ndef f(): return 2\nk = 2\n__version__ = '1.0'\n"
MODULES: tuple[tuple[str, str, str, str], ...] = (
    # name; expression; the text of a module that is imported, and what that is then.
    ("module: a number", "o.K", "K = 2", "K = 3"),
    ("module: a function", "o.f()", "def f(): return 2", "def f(): return 3"),
    (
        "module: a callee",
        "o.f()",
        "def g(): return 2\ndef f(): return g()",
        "def g(): return 3\ndef f(): return g()",
    ),
    ("module: a global of a callee", "o.f()", "K = 2\ndef f(): return K", "K = 3\ndef f(): return K"),
    (
        "module: a list of a callee",
        "o.f()",
        "K = [2]\ndef f(): return len(K) + 1",
        "K = [2, 3]\ndef f(): return len(K) + 1",
    ),
    (
        "module: a missing key of a callee",
        "o.f()",
        "K = {}\ndef f(): return K.get('a', 2)",
        "K = {'a': 3}\ndef f(): return K.get('a', 2)",
    ),
    (
        "module: a class",
        "o.C().f()",
        "class C:\n  def f(self): return 2",
        "class C:\n  def f(self): return 3",
    ),
    (
        "module: a base",
        "o.B().f()",
        "class A:\n  def f(self): return 2\nclass B(A): pass",
        "class A:\n  def f(self): return 3\nclass B(A): pass",
    ),
    ("module: a new name", "(2 if hasattr(o, 'K') else 3)", "", "K = 2"),
    ("module: a default of getattr", "getattr(o, 'K', 2)", "", "K = 3"),
    ("module: dir", "(2 if 'K' in dir(o) else 3)", "", "K = 3"),
    ("module: dict", "(2 if 'K' in o.__dict__ else 3)", "", "K = 3"),
    ("module: vars", "vars(o).get('K', 2)", "", "K = 3"),
    (
        "module: a name that hides a builtin",
        "o.f()",
        "def f(): return len([1, 2])",
        "def len(k): return 3\ndef f(): return len([1, 2])",
    ),
    ("module: __getattr__", "o.k", "def __getattr__(n): return 2", "def __getattr__(n): return 3"),
    ("module: __getattr__ that is new", "(2 if hasattr(o, 'k') else 3)", "", "def __getattr__(n): return 3"),
    (
        "module: what __getattr__ reads",
        "o.k",
        "K = {'k': 2}\ndef __getattr__(n): return K[n]",
        "K = {'k': 3}\ndef __getattr__(n): return K[n]",
    ),
    ("module: __all__", "len(o.__all__)", "__all__ = ['a']", "__all__ = ['a', 'b']"),
    ("module: __version__", "len(o.__version__)", "__version__ = '1.0'", "__version__ = '1.10'"),
    ("module: a version as numbers", "(2 if o.V >= (2, 0) else 3)", "V = (1, 0)", "V = (2, 0)"),
    ("module: a docstring", "len(o.__doc__)", "'a'", "'ab'"),
    ("module: an annotation", "len(o.f.__annotations__) + 1", "def f(k): pass", "def f(k: int): pass"),
    ("module: a signature", "len(inspect.signature(o.f).parameters)", "def f(k): pass", "def f(k, l): pass"),
    (
        "module: an enum",
        "o.E.A.value",
        "import enum\nclass E(enum.Enum): A = 2",
        "import enum\nclass E(enum.Enum): A = 3",
    ),
    (
        "module: a dataclass",
        "o.c.k",
        "import dataclasses\n@dataclasses.dataclass\nclass C: k: int = 2\nc = C()",
        "import dataclasses\n@dataclasses.dataclass\nclass C: k: int = 3\nc = C()",
    ),
    (
        "module: a closure",
        "o.f()",
        "def made(k):\n  def f(): return k\n  return f\nf = made(2)",
        "def made(k):\n  def f(): return k\n  return f\nf = made(3)",
    ),
    (
        "module: a decorator",
        "o.f()",
        "def d(f): return lambda: f() + 1\n@d\ndef f(): return 1",
        "def d(f): return lambda: f() + 2\n@d\ndef f(): return 1",
    ),
    (
        "module: a layer",
        "o.L()(x)",
        "import torch\nclass L(torch.nn.Module):\n  def forward(self, x): return x * 2",
        "import torch\nclass L(torch.nn.Module):\n  def forward(self, x): return x * 3",
    ),
    (
        "module: a cached function",
        "o.f()",
        "import functools\nK = 2\n@functools.cache\ndef f(): return K",
        "import functools\nK = 3\n@functools.cache\ndef f(): return K",
    ),
    (
        "module: an alias of another function",
        "o.f()",
        "def g(): return 2\ndef h(): return 3\nf = g",
        "def g(): return 2\ndef h(): return 3\nf = h",
    ),
    (
        "module: a constant of an operator",
        "o.f(2)",
        "import operator\nf = operator.itemgetter(0)\ng = f\ndef f(k): return 2",
        "import operator\ndef f(k): return 3",
    ),
)
"""Changes of a module that is imported."""
DICTS = {"the model": "self", "an object": "c", "a class": "D", "a module": "o"}
DICT_READS = {
    "in": "(2 if 'k' in OF.__dict__ else 3)",
    "get": "(2 if OF.__dict__.get('k') is None else 3)",
    "in vars": "(2 if 'k' in vars(OF) else 3)",
    "get of vars": "(2 if vars(OF).get('k') is None else 3)",
    "length": "len(OF.__dict__)",
    "length of keys": "len(OF.__dict__.keys())",
    "in keys": "(2 if 'k' in OF.__dict__.keys() else 3)",
    "in a list": "(2 if 'k' in list(OF.__dict__) else 3)",
    "iteration": "k = 0\nfor n in OF.__dict__: k = k + 1",
    "items": "k = 0\nfor n, v in OF.__dict__.items(): k = k + len(n)",
    "comprehension": "len([n for n in vars(OF)])",
    "any": "(2 if any(n in ('k', 'new') for n in OF.__dict__) else 3)",
    "item": "try:\n  OF.__dict__['k']\n  k = 2\nexcept KeyError:\n  k = 3",
    "copy": "len(dict(OF.__dict__))",
    "a default": "(2 if getattr(OF, 'k', None) is None else 3)",
    "an error": "try:\n  OF.k\n  k = 2\nexcept AttributeError:\n  k = 3",
    "pop of a copy": "(2 if dict(vars(OF)).pop('k', None) is None else 3)",
}
"""Ways to look for an attribute."""
RESET = """
torch.set_default_dtype(torch.float32); torch.use_deterministic_algorithms(False)
torch.set_float32_matmul_precision('highest'); torch.backends.cudnn.enabled = True
torch.backends.cudnn.benchmark = False; torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.mkldnn.enabled = True; torch.backends.cuda.enable_math_sdp(True)
torch.__version__ = torch.version.__version__
import sys; sys.setrecursionlimit(1000); sys.set_int_max_str_digits(4300)
for name in [name for of in (torch, torch.Tensor) for name in vars(of) if name.startswith('ROW_')]:
    for of in (torch, torch.Tensor):
        if name in vars(of): delattr(of, name)
"""
"""Undo what rows set in torch."""
ROWS = tuple(_rows())
"""All kinds of change."""
