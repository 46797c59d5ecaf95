"""What may change between two processes, as rows.

A row is a module with a class `Model`, and a change: in its text, in the environment, in the process before
the module is imported or after that, in the call, or in the options. To add a row, add a line to one of the
tables below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

HEAD = """
import abc, builtins, collections, contextlib, copy, dataclasses, datetime, enum, functools, inspect, itertools
import logging, math, operator, os, pathlib, platform, random, socket, string, sys, threading, time, types
import typing, warnings
import importlib.metadata
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
    """Is there an entry?"""

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
            yield environment(f"{name}, set", yes.format(expression.replace("'a'", "'b'")), None, "b")
        yield environment(f"{name}, removed", yes.format(expression), "a" if "'a'" not in expression else "b", None)
        yield environment(f"{name}, new", yes.format(expression), None, "b")
    yield environment("environ item", yes.format("os.environ['KEY'] == 'a'"), "a", "b")
    yield environment("number of the environment", "float(os.environ.get('KEY', '3'))", "2", "4")
    yield environment("number of the environment, removed", "float(os.environ.get('KEY', '3'))", "2", None)
    yield environment("int of getenv", "int(os.getenv('KEY', 3))", None, "4")
    yield environment("environ through a name", "g(os.environ)", None, "4", "def g(e): return int(e.get('KEY', 3))\n")
    yield environment("getenv imported", "int(getenv('KEY', 3))", None, "4", "from os import getenv\n")
    yield environment("environ imported", "int(e.get('KEY', 3))", None, "4", "from os import environ as e\n")
    yield environment("key of a variable", "int(os.getenv(NAME, 3))", None, "4", "NAME = 'KEY'\n")
    yield environment("environ of a try", "try:\n  k = int(os.environ['KEY'])\nexcept KeyError:\n  k = 3", None, "4")
    yield environment("a copy of environ", "int(dict(os.environ).get('KEY', 3))", None, "4")
    yield environment("environ copy", "int(os.environ.copy().get('KEY', 3))", None, "4")
    yield environment("pop of a copy of environ", "int(dict(os.environ).pop('KEY', 3))", None, "4")
    yield environment("environ setdefault", "int(os.environ.setdefault('KEY', '3'))", None, "4")
    yield environment("length of environ", "len(os.environ)", None, "4")
    yield environment("environb", "int(os.environb.get(b'KEY', 3))", None, "4")
    yield environment("getenvb", "int(os.getenvb(b'KEY', 3))", None, "4")
    yield environment("expandvars", "len(os.path.expandvars('$KEY'))", None, "4")
    yield environment("environ at import", "K", None, "4", "K = int(os.getenv('KEY', '3'))\n")
    yield environment("a function at import", "f()", None, "4", "if os.getenv('KEY'):\n  def f(): return 4\nelse:\n  def f(): return 3\n")
    yield environment("a name that is there at import", "(2 if hasattr(sys.modules[__name__], 'K') else 3)", None, "4", "if os.getenv('KEY'): K = 4\n")
    yield environment("a default of the environment", "f()", "4", "5", "def f(k=int(os.getenv('KEY', '3'))): return k\n")
    yield environment("a cached function of the environment", "f()", "4", "5", "@functools.cache\ndef f(): return int(os.getenv('KEY', '3'))\n")
    yield environment("an lru cache of the environment", "f(1)", "4", "5", "@functools.lru_cache(None)\ndef f(a): return a * int(os.getenv('KEY', '3'))\n")
    yield environment("a cached property of the environment", "C().k", "4", "5", "class C:\n  @functools.cached_property\n  def k(self): return int(os.getenv('KEY', '3'))\n")
    yield environment("a constant result of the environment", "f()", "4", "5", "@torch._dynamo.assume_constant_result\ndef f(): return int(os.getenv('KEY', '3'))\n")


SOURCES: tuple[tuple[str, str, str, str, str], ...] = (
    # name; text of the module; expression; what is changed, and to what.
    ("a number", "", "2", "2", "3"),
    ("a number of another type", "", "2", "2)", "2.0)"),
    ("a global number", "K = 2", "K", "2", "3"),
    ("a global text", "K = 'ab'", "len(K)", "'ab'", "'abc'"),
    ("a global tuple", "K = (1, 2)", "K[1]", "2)", "3)"),
    ("a global list", "K = [1, 2]", "K[1]", "2]", "3]"),
    ("the length of a global list", "K = [1, 2]", "len(K)", "2]", "2, 3]"),
    ("the truth of a global list", "K = [1]", "(2 if K else 3)", "[1]", "[]"),
    ("a global dict", "K = {'a': 2}", "K['a']", "2", "3"),
    ("a key of a global dict", "K = {'a': 2}", "(2 if 'a' in K else 3)", "'a'", "'b'"),
    ("a new key of a global dict", "K = {'b': 2}", "(2 if 'a' in K else 3)", "'b':", "'a':"),
    ("get of a global dict", "K = {'b': 2}", "K.get('a', 3)", "'b':", "'a':"),
    ("the order of a dict", "K = {'a': 2, 'b': 3}", "list(K.values())[0]", "'a': 2, 'b': 3", "'b': 3, 'a': 2"),
    ("the first key of a dict", "K = {'a': 2, 'b': 3}", "K[next(iter(K))]", "'a': 2, 'b': 3", "'b': 3, 'a': 2"),
    ("items of a dict", "K = {'a': 2, 'b': 3}", "k = 0\nfor n, v in K.items(): k = k * 2 + v", "'a': 2, 'b': 3", "'b': 3, 'a': 2"),
    ("a global set", "K = {1, 2}", "(2 if 1 in K else 3)", "{1,", "{4,"),
    ("a new member of a global set", "K = {4}", "(2 if 1 in K else 3)", "{4", "{1"),
    ("the length of a global set", "K = {1, 2}", "len(K)", "{1,", "{1, 3,"),
    ("a frozen set", "K = frozenset({1, 2})", "(2 if 1 in K else 3)", "{1,", "{4,"),
    ("an ordered dict", "K = collections.OrderedDict(a=2, b=3)", "list(K.values())[0]", "a=2, b=3", "b=3, a=2"),
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
    ("nan", "K = float('nan')", "(2 if math.isnan(K) else 3)", "nan", "inf"),
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
    ("a default of a nested function", "K = 2\ndef f():\n  def g(k=K): return k\n  return g()", "f()", "K = 2", "K = 3"),
    ("a closure", "def made(k):\n  def f(): return k\n  return f\nf = made(2)", "f()", "(2)", "(3)"),
    ("a closure in a closure", "def made(k):\n  def g(): return k\n  def f(): return g()\n  return f\nf = made(2)", "f()", "(2)", "(3)"),
    ("a list in a closure", "def made(k):\n  def f(): return k[0]\n  return f\nf = made([2])", "f()", "([2])", "([3])"),
    ("a dict in a closure", "def made(k):\n  def f(): return k.get('a', 2)\n  return f\nf = made({})", "f()", "({})", "({'a': 3})"),
    ("a function in a closure", "def made(g):\n  def f(): return g()\n  return f\nf = made(lambda: 2)", "f()", "2)", "3)"),
    ("the names of arguments", "def f(a, b): return a * 2 + b", "f(a=1, b=3)", "(a, b)", "(b, a)"),
    ("the number of arguments", "K = (1, 2)\ndef f(*k): return len(k)", "f(*K)", "2)", "2, 3)"),
    ("an annotation", "def f(k: int): return k", "(2 if f.__annotations__['k'] is int else 3)", "k: int", "k: float"),
    ("a new annotation", "def f(k): return k", "(2 if 'k' in f.__annotations__ else 3)", "f(k)", "f(k: int)"),
    ("the number of annotations", "def f(k): return k", "len(f.__annotations__) + 1", "f(k)", "f(k: int)"),
    ("annotations through getattr", "def f(k): return k", "len(getattr(f, '__annotations__')) + 1", "f(k)", "f(k: int)"),
    ("type hints", "def f(k): return k", "len(typing.get_type_hints(f)) + 1", "f(k)", "f(k: int)"),
    ("inspect.get_annotations", "def f(k): return k", "len(inspect.get_annotations(f)) + 1", "f(k)", "f(k: int)"),
    ("annotations of a class", "class C: pass", "(2 if 'k' in C.__annotations__ else 3)", "class C: pass", "class C:\n  k: int"),
    ("annotations of a module", "J: int = 1", "(2 if 'K' in __annotations__ else 3)", "J: int = 1", "J: int = 1\nK: int = 1"),
    ("a signature", "def f(k): return k", "len(inspect.signature(f).parameters)", "f(k)", "f(k, l=1)"),
    ("a default in a signature", "def f(k=2): return k", "inspect.signature(f).parameters['k'].default", "k=2", "k=3"),
    ("a name in a signature", "def f(k): return k", "(2 if 'k' in inspect.signature(f).parameters else 3)", "f(k): return k", "f(l): return l"),
    ("the signature of a method", "class C:\n  def f(self, k): return k", "len(inspect.signature(C.f).parameters)", "self, k", "self, k, l=1"),
    ("the signature of a class", "class C:\n  def __init__(self, k): self.k = k", "len(inspect.signature(C).parameters)", "self, k", "self, k, l=1"),
    ("inspect.getfullargspec", "def f(k): return k", "len(inspect.getfullargspec(f).args)", "f(k)", "f(k, l=1)"),
    ("the argument count of code", "def f(k): return k", "f.__code__.co_argcount", "f(k)", "f(k, l=1)"),
    ("the names of code", "def f(k): return k", "len(f.__code__.co_varnames)", "f(k)", "f(k, l=1)"),
    ("the first line of code", "\ndef f(k): return k", "f.__code__.co_firstlineno", "\ndef f", "\n\ndef f"),
    ("the flags of code", "def f(k): return k", "(2 if inspect.isgeneratorfunction(f) else 3)", "return k", "yield k"),
    ("a coroutine function", "def f(k): return k", "(2 if inspect.iscoroutinefunction(f) else 3)", "def f", "async def f"),
    ("defaults", "def f(k=2): return k", "f.__defaults__[0]", "k=2", "k=3"),
    ("defaults that are none", "def f(k): return k", "(2 if f.__defaults__ is None else 3)", "f(k)", "f(k=1)"),
    ("keyword defaults", "def f(*, k=2): return k", "f.__kwdefaults__['k']", "k=2", "k=3"),
    ("a docstring", "def f():\n  'a'", "len(f.__doc__)", "'a'", "'ab'"),
    ("a docstring that is none", "def f(): pass", "(2 if f.__doc__ is None else 3)", "pass", "'ab'"),
    ("the docstring of a class", "class C:\n  'a'", "len(C.__doc__)", "'a'", "'ab'"),
    ("the docstring of the module", "__doc__ = 'a'", "len(__doc__)", "'a'", "'ab'"),
    ("the name of a function", "def f(): pass\ng = f", "len(g.__name__)", "def f(): pass\ng = f", "def ff(): pass\ng = ff"),
    ("the qualified name of a function", "def made():\n  def f(): pass\n  return f\ng = made()", "len(g.__qualname__)", "made()", "mad()"),
    ("the name of a module", "def f(): pass", "len(f.__module__)", "pass\n", "pass\nf.__module__ = 'other'\n"),
    ("an attribute of a function", "def f(): pass\nf.k = 2", "f.k", "2", "3"),
    ("an attribute of a function, new", "def f(): pass", "getattr(f, 'k', 2)", "pass\n", "pass\nf.k = 3\n"),
    ("hasattr of a function", "def f(): pass", "(2 if hasattr(f, 'k') else 3)", "pass\n", "pass\nf.k = 3\n"),
    ("what a function wraps", "def g(): return 2\ndef f(): return 1\nf.__wrapped__ = g", "f.__wrapped__()", "return 2", "return 3"),
    ("a decorator", "def d(f):\n  def g(): return f() + 1\n  return g\n@d\ndef f(): return 2", "f()", "+ 1", "+ 2"),
    ("one decorator more", "def d(f):\n  def g(): return f() + 1\n  return g\n@d\ndef f(): return 2", "f()", "@d\n", "@d\n@d\n"),
    ("no decorator", "def d(f):\n  @functools.wraps(f)\n  def g(): return f() + 1\n  return g\n@d\ndef f(): return 2", "f()", "@d\n", ""),
    ("an argument of a decorator", "def d(k):\n  def e(f):\n    @functools.wraps(f)\n    def g(): return f() + k\n    return g\n  return e\n@d(1)\ndef f(): return 2", "f()", "@d(1)", "@d(2)"),
    ("a cached function", "@functools.cache\ndef f(): return 2", "f()", "2", "3"),
    ("a callee of a cached function", "def g(): return 2\n@functools.cache\ndef f(): return g()", "f()", "2", "3"),
    ("a global of a cached function", "K = 2\n@functools.lru_cache\ndef f(): return K", "f()", "2", "3"),
    ("a default of a cached function", "@functools.cache\ndef f(k=2): return k", "f()", "2", "3"),
    ("the size of a cache", "@functools.lru_cache(maxsize=2)\ndef f(k): return k", "f(2) + f.cache_parameters()['maxsize']", "=2", "=3"),
    ("a partial", "def f(k): return k\ng = functools.partial(f, 2)", "g()", "2)", "3)"),
    ("a keyword of a partial", "def f(k): return k\ng = functools.partial(f, k=2)", "g()", "=2)", "=3)"),
    ("a function of a partial", "def f(k): return k\ng = functools.partial(f, 2)", "g()", "return k", "return k + 1"),
    ("a partial method", "class C:\n  def f(self, k): return k\n  g = functools.partialmethod(f, 2)\nc = C()", "c.g()", "2)", "3)"),
    ("a single dispatch", "@functools.singledispatch\ndef f(k): return 2\n@f.register\ndef _(k: int): return 3", "f(1)", "return 3", "return 4"),
    ("a new single dispatch", "@functools.singledispatch\ndef f(k): return 2", "f(1)", "return 2\n", "return 2\n@f.register\ndef _(k: int): return 3\n"),
    ("a reduction", "f = lambda a, b: a + b", "functools.reduce(f, [1, 2, 3])", "a + b", "a * b + 1"),
    ("a generator", "def f():\n  yield 2", "next(f())", "2", "3"),
    ("a comprehension", "", "sum([i for i in range(3)])", "range(3)", "range(4)"),
    ("a sort key", "f = lambda a: a", "sorted([1, 2, 3], key=f)[0]", "a: a", "a: -a"),
    ("a map", "f = lambda a: a", "sum(map(f, [1, 2]))", "a: a", "a: -a"),
    ("a walrus", "K = 2", "(k := K)", "2", "3"),
    ("a match", "K = 'a'", "match K:\n  case 'a':\n    k = 2\n  case _:\n    k = 3", "K = 'a'", "K = 'b'"),
    ("an exception", "class E(Exception): pass\nclass D(E): pass\ndef f(): raise D", "try:\n  f()\nexcept E:\n  k = 2\nexcept Exception:\n  k = 3", "D(E)", "D(Exception)"),
    ("an exception that is not raised", "def f(): return 1", "try:\n  k = f()\nexcept ValueError:\n  k = 3", "return 1", "raise ValueError"),
    ("a context manager", "class C:\n  def __enter__(self): return 2\n  def __exit__(self, *a): return None", "with C() as k: pass", "return 2", "return 3"),
    ("a generator that is a context manager", "@contextlib.contextmanager\ndef f(): yield 2", "with f() as k: pass", "2", "3"),
    ("an attribute of a class", "class C: k = 2", "C.k", "2", "3"),
    ("a new attribute of a class", "class C: pass", "getattr(C, 'k', 2)", "pass", "k = 3"),
    ("hasattr of a class", "class C: pass", "(2 if hasattr(C, 'k') else 3)", "pass", "k = 3"),
    ("hasattr of an instance", "class C: pass\nc = C()", "(2 if hasattr(c, 'k') else 3)", "pass", "k = 3"),
    ("a list of a class", "class C: k = [1, 2]", "C.k[0] + len(C.k)", "2]", "2, 3]"),
    ("a dict of a class", "class C: k = {'a': 2}", "C.k['a']", "2}", "3}"),
    ("an attribute of a base", "class A: k = 2\nclass B(A): pass", "B.k", "2", "3"),
    ("an attribute that hides that of a base", "class A: k = 2\nclass B(A): pass", "B.k", "(A): pass", "(A): k = 3"),
    ("a method", "class C:\n  def f(self): return 2\nc = C()", "c.f()", "2", "3"),
    ("a method of a base", "class A:\n  def f(self): return 2\nclass B(A): pass\nb = B()", "b.f()", "2", "3"),
    ("a method that hides that of a base", "class A:\n  def f(self): return 2\nclass B(A): pass\nb = B()", "b.f()", "(A): pass", "(A):\n  def f(self): return 3"),
    ("super", "class A:\n  def f(self): return 2\nclass B(A):\n  def f(self): return super().f()\nb = B()", "b.f()", "return 2", "return 3"),
    ("a class between", "class A:\n  def f(self): return 2\nclass M(A): pass\nclass B(M):\n  def f(self): return super().f()\nb = B()", "b.f()", "M(A): pass", "M(A):\n  def f(self): return 3"),
    ("a static method", "class C:\n  @staticmethod\n  def f(): return 2", "C.f()", "2", "3"),
    ("a class method", "class C:\n  k = 2\n  @classmethod\n  def f(cls): return cls.k", "C.f()", "2", "3"),
    ("a property", "class C:\n  @property\n  def k(self): return 2\nc = C()", "c.k", "2", "3"),
    ("a property of a base", "class A:\n  @property\n  def k(self): return 2\nclass B(A): pass\nb = B()", "b.k", "2", "3"),
    ("what a property reads", "K = 2\nclass C:\n  @property\n  def k(self): return K\nc = C()", "c.k", "K = 2", "K = 3"),
    ("a descriptor", "class D:\n  def __get__(self, o, t): return 2\nclass C: k = D()\nc = C()", "c.k", "2", "3"),
    ("a descriptor of a class", "class D:\n  def __get__(self, o, t): return 2\nclass C: k = D()", "C.k", "2", "3"),
    ("state of a descriptor", "class D:\n  def __init__(self, k): self.k = k\n  def __get__(self, o, t): return self.k\nclass C: k = D(2)\nc = C()", "c.k", "2", "3"),
    ("state of a descriptor of a class", "class D:\n  def __init__(self, k): self.k = k\n  def __get__(self, o, t): return self.k\nclass C: k = D(2)", "C.k", "2", "3"),
    ("__getattr__", "class C:\n  def __getattr__(self, n): return 2\nc = C()", "c.k", "2", "3"),
    ("__getattr__ that reads", "K = {'k': 2}\nclass C:\n  def __getattr__(self, n): return K[n]\nc = C()", "c.k", "2", "3"),
    ("__getattribute__", "class C:\n  def __getattribute__(self, n): return 2\nc = C()", "c.k", "2", "3"),
    ("__getattr__ of a metaclass", "class M(type):\n  def __getattr__(cls, n): return 2\nclass C(metaclass=M): pass", "C.k", "2", "3"),
    ("__getattribute__ of a metaclass", "class M(type):\n  def __getattribute__(cls, n): return 2\nclass C(metaclass=M): pass", "C.k", "2", "3"),
    ("a property of a metaclass", "class M(type):\n  @property\n  def k(cls): return 2\nclass C(metaclass=M): pass", "C.k", "2", "3"),
    ("what a property of a metaclass reads", "K = 2\nclass M(type):\n  @property\n  def k(cls): return K\nclass C(metaclass=M): pass", "C.k", "2", "3"),
    ("what __getattr__ of a metaclass reads", "K = {'k': 2}\nclass M(type):\n  def __getattr__(cls, n): return K[n]\nclass C(metaclass=M): pass", "C.k", "2", "3"),
    ("an attribute of a metaclass", "class M(type): k = 2\nclass C(metaclass=M): pass", "C.k", "2", "3"),
    ("a list of a metaclass", "class M(type): k = [2]\nclass C(metaclass=M): pass", "C.k[0]", "2", "3"),
    ("a method of a metaclass", "class M(type):\n  def k(cls): return 2\nclass C(metaclass=M): pass", "C.k()", "2", "3"),
    ("__len__ of a metaclass", "class M(type):\n  def __len__(cls): return 2\nclass C(metaclass=M): pass", "len(C)", "2", "3"),
    ("__contains__ of a metaclass", "class M(type):\n  def __contains__(cls, k): return k == 2\nclass C(metaclass=M): pass", "(2 if 2 in C else 3)", "k == 2", "k == 3"),
    ("__call__ of a metaclass", "class M(type):\n  def __call__(cls): return 2\nclass C(metaclass=M): pass", "C()", "2", "3"),
    ("__instancecheck__", "class M(type):\n  def __instancecheck__(cls, o): return True\nclass C(metaclass=M): pass", "(2 if isinstance(1, C) else 3)", "True", "False"),
    ("__subclasscheck__", "class M(type):\n  def __subclasscheck__(cls, o): return True\nclass C(metaclass=M): pass", "(2 if issubclass(int, C) else 3)", "True", "False"),
    ("what __instancecheck__ reads", "K = True\nclass M(type):\n  def __instancecheck__(cls, o): return K\nclass C(metaclass=M): pass\nc = object()", "(2 if isinstance(c, C) else 3)", "K = True", "K = False"),
    ("__class_getitem__", "class C:\n  def __class_getitem__(cls, k): return 2", "C[1]", "return 2", "return 3"),
    ("__init_subclass__", "class A:\n  def __init_subclass__(cls): cls.k = 2\nclass B(A): pass", "B.k", "2", "3"),
    ("__set_name__", "class D:\n  def __set_name__(self, o, n): o.k = 2\nclass C: d = D()", "C.k", "2", "3"),
    ("__new__", "class C:\n  def __new__(cls):\n    o = object.__new__(cls)\n    o.k = 2\n    return o", "C().k", "2", "3"),
    ("a constructor", "class C:\n  def __init__(self): self.k = 2", "C().k", "2", "3"),
    ("__post_init__", "@dataclasses.dataclass\nclass C:\n  k: int = 1\n  def __post_init__(self): self.k += 2", "C().k", "2", "3"),
    ("an operator of a class", "class C:\n  def __add__(self, k): return 2\nc = C()", "c + 1", "2", "3"),
    ("a reflected operator", "class C:\n  def __radd__(self, k): return 2\nc = C()", "1 + c", "2", "3"),
    ("__call__", "class C:\n  def __call__(self): return 2\nc = C()", "c()", "2", "3"),
    ("__getitem__", "class C:\n  def __getitem__(self, k): return 2\nc = C()", "c[0]", "2", "3"),
    ("__len__", "class C:\n  def __len__(self): return 2\nc = C()", "len(c)", "2", "3"),
    ("__bool__", "class C:\n  def __bool__(self): return True\nc = C()", "(2 if c else 3)", "True", "False"),
    ("a new __bool__", "class C: pass\nc = C()", "(2 if c else 3)", "pass", "\n  def __bool__(self): return False"),
    ("a new __len__", "class C: pass\nc = C()", "(2 if c else 3)", "pass", "\n  def __len__(self): return 0"),
    ("__eq__", "class C:\n  def __eq__(self, o): return True\nc = C()", "(2 if c == 1 else 3)", "True", "False"),
    ("a new __eq__", "class C: pass\nc = C()", "(2 if c == 1 else 3)", "pass", "\n  def __eq__(self, o): return True"),
    ("__contains__", "class C:\n  def __contains__(self, k): return True\nc = C()", "(2 if 1 in c else 3)", "True", "False"),
    ("__iter__", "class C:\n  def __iter__(self): return iter([1, 2])\nc = C()", "sum(c)", "2]", "3]"),
    ("__repr__", "class C:\n  def __repr__(self): return 'a'\nc = C()", "len(repr(c))", "'a'", "'ab'"),
    ("__str__", "class C:\n  def __str__(self): return 'a'\nc = C()", "len(str(c))", "'a'", "'ab'"),
    ("__format__", "class C:\n  def __format__(self, s): return 'a'\nc = C()", "len(f'{c}')", "'a'", "'ab'"),
    ("__hash__", "class C:\n  def __hash__(self): return 2\nc = C()", "hash(c)", "2", "3"),
    ("__index__", "class C:\n  def __index__(self): return 2\nc = C()", "[1, 2, 3][c]", "2", "1"),
    ("__slots__", "class C:\n  __slots__ = ('k',)\nc = C()", "len(C.__slots__) + 1", "('k',)", "('k', 'l')"),
    ("bases", "class A: pass\nclass B(A): pass\nb = B()", "(2 if isinstance(b, A) else 3)", "B(A)", "B"),
    ("issubclass", "class A: pass\nclass B(A): pass", "(2 if issubclass(B, A) else 3)", "B(A)", "B"),
    ("the order of bases", "class A: k = 2\nclass B: k = 3\nclass C(A, B): pass", "C.k", "(A, B)", "(B, A)"),
    ("__mro__", "class A: pass\nclass B(A): pass", "len(B.__mro__)", "B(A)", "B"),
    ("mro()", "class A: pass\nclass B(A): pass", "len(B.mro())", "B(A)", "B"),
    ("__bases__", "class A: pass\nclass D: pass\nclass B(A): pass", "len(B.__bases__)", "B(A)", "B(A, D)"),
    ("__subclasses__", "class A: pass\nclass B(A): pass", "len(A.__subclasses__()) + 1", "B(A)", "B"),
    ("the name of a class", "class C: pass\nD = C", "len(D.__name__)", "class C: pass\nD = C", "class CC: pass\nD = CC"),
    ("the name of a type", "class C: pass\nc = C()", "len(type(c).__name__)", "class C: pass\nc = C()", "class CC: pass\nc = CC()"),
    ("the dict of a class", "class C: pass", "(2 if 'k' in C.__dict__ else 3)", "pass", "k = 3"),
    ("vars of a class", "class C: pass", "(2 if 'k' in vars(C) else 3)", "pass", "k = 3"),
    ("dir of a class", "class C: pass", "(2 if 'k' in dir(C) else 3)", "pass", "k = 3"),
    ("dir of an instance", "class C: pass\nc = C()", "(2 if 'k' in dir(c) else 3)", "pass", "k = 3"),
    ("inspect.getmembers", "class C: pass", "len(inspect.getmembers(C))", "pass", "k = 3"),
    ("inspect.getattr_static", "class C: pass", "inspect.getattr_static(C, 'k', 2)", "pass", "k = 3"),
    ("callable", "class C: pass\nc = C()", "(2 if callable(c) else 3)", "pass", "\n  def __call__(self): return 1"),
    ("registered as one of an abstract class", "class A(abc.ABC): pass\nclass B: pass\nA.register(B)", "(2 if issubclass(B, A) else 3)", "A.register(B)", "B"),
    ("an instance of an abstract class", "class A(abc.ABC): pass\nclass B: pass\nA.register(B)\nb = B()", "(2 if isinstance(b, A) else 3)", "A.register(B)", "B"),
    ("__subclasshook__", "class A(abc.ABC):\n  @classmethod\n  def __subclasshook__(cls, o): return True\nclass B: pass\nb = B()", "(2 if isinstance(b, A) else 3)", "True", "False"),
    ("an abstract class of collections", "class B: pass\nb = B()", "(2 if isinstance(b, collections.abc.Sized) else 3)", "B: pass", "B:\n  def __len__(self): return 1"),
    ("a protocol", "@typing.runtime_checkable\nclass P(typing.Protocol):\n  def f(self): ...\nclass B: pass\nb = B()", "(2 if isinstance(b, P) else 3)", "B: pass", "B:\n  def f(self): return 1"),
    ("abstract methods", "class A(abc.ABC):\n  def f(self): ...", "len(A.__abstractmethods__) + 1", "  def f", "  @abc.abstractmethod\n  def f"),
    ("inspect.isabstract", "class A(abc.ABC):\n  def f(self): ...", "(2 if inspect.isabstract(A) else 3)", "  def f", "  @abc.abstractmethod\n  def f"),
    ("a member of an enum", "class E(enum.Enum):\n  A = 2", "E.A.value", "2", "3"),
    ("the number of members of an enum", "class E(enum.Enum):\n  A = 2", "len(E)", "A = 2", "A = 2\n  B = 3"),
    ("a name of an enum", "class E(enum.Enum):\n  A = 2\n  B = 3", "E['A'].value", "A = 2\n  B = 3", "B = 2\n  A = 3"),
    ("an enum of integers", "class E(enum.IntEnum):\n  A = 2", "E.A + 1", "2", "3"),
    ("flags", "class E(enum.Flag):\n  A = 1\n  B = 2", "(2 if E.A in E(1) else 3)", "A = 1\n  B = 2", "B = 1\n  A = 2"),
    ("an automatic enum", "class E(enum.Enum):\n  A = enum.auto()\n  B = enum.auto()", "E.B.value", "A = enum.auto()\n  B = enum.auto()", "B = enum.auto()\n  A = enum.auto()"),
    ("the name of a member", "class E(enum.Enum):\n  A = 2\ne = E(2)", "len(e.name)", "A = 2", "AA = 2"),
    ("a method of an enum", "class E(enum.Enum):\n  A = 1\n  def f(self): return 2", "E.A.f()", "return 2", "return 3"),
    ("members of an enum", "class E(enum.Enum):\n  A = 1", "(2 if 'B' in E.__members__ else 3)", "A = 1", "A = 1\n  B = 2"),
    ("an iteration over an enum", "class E(enum.Enum):\n  A = 1\n  B = 2", "[e.value for e in E][0]", "A = 1\n  B = 2", "B = 2\n  A = 1"),
    ("a field of a dataclass", "@dataclasses.dataclass\nclass C:\n  k: int = 2\nc = C()", "c.k", "2", "3"),
    ("the fields of a dataclass", "@dataclasses.dataclass\nclass C:\n  k: int = 2", "len(dataclasses.fields(C))", "k: int = 2", "k: int = 2\n  l: int = 3"),
    ("a name of a field", "@dataclasses.dataclass\nclass C:\n  k: int = 2", "len(dataclasses.fields(C)[0].name)", "k: int", "kk: int"),
    ("metadata of a field", "@dataclasses.dataclass\nclass C:\n  k: int = dataclasses.field(default=1, metadata={'a': 2})", "dataclasses.fields(C)[0].metadata['a']", "'a': 2", "'a': 3"),
    ("a factory of a field", "@dataclasses.dataclass\nclass C:\n  k: list = dataclasses.field(default_factory=lambda: [2])", "C().k[0]", "[2]", "[3]"),
    ("asdict", "@dataclasses.dataclass\nclass C:\n  k: int = 2\nc = C()", "dataclasses.asdict(c)['k']", "2", "3"),
    ("replace", "@dataclasses.dataclass\nclass C:\n  k: int = 2\n  l: int = 3\nc = C()", "dataclasses.replace(c, k=1).l", "3", "4"),
    ("is_dataclass", "@dataclasses.dataclass\nclass C:\n  k: int = 2", "(2 if dataclasses.is_dataclass(C) else 3)", "@dataclasses.dataclass\n", ""),
    ("a frozen dataclass", "@dataclasses.dataclass\nclass C:\n  k: int = 2\nc = C()", "(2 if C.__dataclass_params__.frozen else 3)", "dataclass\n", "dataclass(frozen=True)\n"),
    ("an order of a dataclass", "@dataclasses.dataclass(order=True)\nclass C:\n  a: int\n  b: int\n", "(2 if C(a=1, b=2) < C(a=2, b=1) else 3)", "a: int\n  b: int", "b: int\n  a: int"),
    ("a named tuple", "T = collections.namedtuple('T', 'a b')", "T(2, 3).a", "a b", "b a"),
    ("a default of a named tuple", "class T(typing.NamedTuple):\n  a: int = 2", "T().a", "2", "3"),
    ("fields of a named tuple", "T = collections.namedtuple('T', 'a b', defaults=(1, 2))", "len(T._fields)", "'a b'", "'a b c'"),
    ("a typed dict", "class T(typing.TypedDict):\n  a: int", "len(T.__annotations__)", "a: int", "a: int\n  b: int"),
    ("a generic alias", "K = list[int]", "(2 if K.__args__[0] is int else 3)", "[int]", "[float]"),
    ("get_args", "K = list[int]", "(2 if typing.get_args(K)[0] is int else 3)", "[int]", "[float]"),
    ("a literal type", "K = typing.Literal[2]", "typing.get_args(K)[0]", "[2]", "[3]"),
    ("a name that is there", "", "(2 if hasattr(sys.modules['MODULE'], 'K') else 3)", "\nclass Model", "\nK = 3\nclass Model"),
    ("a name in globals", "", "(2 if 'K' in globals() else 3)", "\nclass Model", "\nK = 3\nclass Model"),
    ("a name of globals", "", "globals().get('K', 2)", "\nclass Model", "\nK = 3\nclass Model"),
    ("a name of vars of a module", "", "vars(sys.modules['MODULE']).get('K', 2)", "\nclass Model", "\nK = 3\nclass Model"),
    ("a name in dir of a module", "", "(2 if 'K' in dir(sys.modules['MODULE']) else 3)", "\nclass Model", "\nK = 3\nclass Model"),
    ("the dict of a module", "", "(2 if 'K' in sys.modules['MODULE'].__dict__ else 3)", "\nclass Model", "\nK = 3\nclass Model"),
    ("a name that hides a builtin", "", "len([1, 2])", "\nclass Model", "\ndef len(k): return 3\nclass Model"),
    ("a default of a module's name", "", "getattr(sys.modules['MODULE'], 'K', 2)", "\nclass Model", "\nK = 3\nclass Model"),
    ("a new method of the model", "", "(self.f() if hasattr(self, 'f') else 2)", "  def forward", "  def f(self): return 3\n  def forward"),
    ("a new attribute of the model", "", "getattr(self, 'k', 2)", "\n  def forward", "\n  k = 3\n  def forward"),
)
"""Changes of the text of a module."""


ROWS = [*_environment(), *(source(*row) for row in SOURCES)]
