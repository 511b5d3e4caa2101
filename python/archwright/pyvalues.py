"""What names in a tree of Python files stand for, as far as that can be followed without running anything.

Followed are imports in every form, aliases, `a if c else b`, `getattr` with a constant, `functools.partial`, classes
and what is made from them, attributes of `self`, and annotations of variables, parameters and results. Assignments are
not ordered: a name stands for everything that it is ever given. What cannot be followed stands for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Module", "PythonTree", "Scope", "Value"]

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PROPERTIES = frozenset(["property", "cached_property"])
#: Wrappers of a type in an annotation that leave it that type.
_TRANSPARENT = frozenset(["Annotated", "ClassVar", "Final", "Optional", "Union"])


@dataclass(frozen=True)
class Value:
    """What is called `name` (dotted, from the top package on), or with `made` an object of the class `name`.

    A `member` is what an object of another tree's class has: a method or an attribute of a type that nobody knows.
    """

    name: str
    made: bool = False
    member: bool = False


_Values = frozenset[Value]
_NOTHING: _Values = frozenset()


@dataclass(frozen=True)
class _Binding:
    """One thing that a name is given: a value that is known, an expression, or an annotation."""

    value: Value | None = None
    expression: ast.expr | None = None
    annotation: ast.expr | None = None
    scope: Scope | None = None


@dataclass(eq=False)
class Scope:
    """The names of one module, class or function. `attributes` are those that methods give to `self`."""

    name: str
    parent: Scope | None
    is_class: bool = False
    bindings: dict[str, list[_Binding]] = field(default_factory=dict)
    attributes: dict[str, list[_Binding]] = field(default_factory=dict)

    def add(self, name: str, binding: _Binding) -> None:
        self.bindings.setdefault(name, []).append(binding)


@dataclass(frozen=True)
class Module:
    """One file: its dotted name, its path from the root, and its syntax tree."""

    name: str
    file: str
    tree: ast.Module
    is_package: bool

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that `node` imports from, with its dots resolved."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: max(0, len(parts) - node.level + (1 if self.is_package else 0))]
        return ".".join([*(base or [""]), *([node.module] if node.module else [])])  # "" leads out of every package


class PythonTree:
    """The Python files under a folder. Those that cannot be parsed are in `unread`, each with the reason."""

    def __init__(self, root: Path, package: str = "") -> None:
        """Read all of `root`, or the one `package` (a folder) in it."""
        self.modules: dict[str, Module] = {}
        self.unread: dict[str, str] = {}
        self._scopes: dict[int, Scope] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._functions: dict[str, _Function] = {}
        self._known: dict[int, _Values] = {}
        self._busy: set[int | str] = set()
        self._circles = 0
        self._kept: list[ast.expr] = []  # `_known` goes by identity, so nothing in it may be freed
        for path in sorted((root / package).rglob("*.py")):
            self._read(root, path)
        for module in self.modules.values():
            self._bind(module)

    def scope(self, node: ast.AST, around: Scope | None = None) -> Scope:
        """The scope that `node` has: a module, class, function, lambda or comprehension. Others have that `around`."""
        found = self._scopes.get(id(node), around)
        assert found is not None
        return found

    def values(self, node: ast.expr, scope: Scope) -> _Values:
        """What the expression `node` in `scope` may stand for."""
        key = id(node)
        if key in self._known:
            return self._known[key]
        before = self._circles
        found = self._guarded(key, lambda: self._evaluate(node, scope))
        if self._circles == before or not self._busy:  # inside a circle a result may be incomplete
            self._known[key] = found
        return found

    def _guarded(self, key: int | str, find: Callable[[], _Values]) -> _Values:
        """`find()`, or nothing where that is already being found: `x = x or y`, and longer circles."""
        if key in self._busy:
            self._circles += 1
            return _NOTHING
        self._busy.add(key)
        try:
            return find()
        finally:
            self._busy.discard(key)

    def resolve(self, name: str) -> _Values:
        """What the dotted `name` stands for, re-exports followed; itself when it leads out of the tree."""
        if name in self.modules or name in self._classes or name in self._functions:
            return frozenset([Value(name)])
        parent, _, last = name.rpartition(".")
        if parent in self.modules:
            scope = self._scopes[id(self.modules[parent].tree)]
            if last in scope.bindings:
                return self._bound(scope.bindings[last])
            return frozenset([Value(name)])
        if parent in self._classes:
            return self._member(parent, last, made=False)
        if parent and (found := self.resolve(parent)) != frozenset([Value(parent)]):
            return self._attributes(found, last)
        return frozenset([Value(name)])

    # ------------------------------------------------------------------------------------------------ reading

    def _read(self, root: Path, path: Path) -> None:
        file = path.relative_to(root)
        parts = file.with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, OSError) as error:
            self.unread[str(file)] = f"{type(error).__name__}: {error}"
            return
        self.modules[name] = Module(name, str(file), tree, is_package)

    def _bind(self, module: Module) -> None:
        scope = Scope(module.name, None)
        self._scopes[id(module.tree)] = scope
        for node in module.tree.body:
            self._bind_node(node, scope, module)

    def _bind_node(self, node: ast.AST, scope: Scope, module: Module) -> None:
        """Note what `node` binds in `scope`, and everything below it."""
        if isinstance(node, ast.ClassDef):
            self._bind_class(node, scope, module)
            return
        if isinstance(node, _Function):
            self._bind_function(node, scope, module)
            return
        if isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
            scope = Scope(scope.name, scope)
            self._scopes[id(node)] = scope
            if isinstance(node, ast.Lambda):
                self._bind_parameters(node.args, scope)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                scope.add(alias.asname or top, _Binding(Value(alias.name if alias.asname else top)))
        elif isinstance(node, ast.ImportFrom):
            self._bind_imported(node, scope, module)
        else:
            for target, binding in _bound_by(node, scope):
                self._bind_target(target, binding, scope)
        for child in ast.iter_child_nodes(node):
            self._bind_node(child, scope, module)

    def _bind_imported(self, node: ast.ImportFrom, scope: Scope, module: Module) -> None:
        source = module.absolute(node)
        for alias in node.names:
            if alias.name == "*":
                scope.add("*", _Binding(Value(source)))
            else:
                scope.add(alias.asname or alias.name, _Binding(Value(f"{source}.{alias.name}")))

    def _bind_class(self, node: ast.ClassDef, scope: Scope, module: Module) -> None:
        inner = Scope(f"{scope.name}.{node.name}", scope, is_class=True)
        self._scopes[id(node)] = inner
        self._classes[inner.name] = node
        scope.add(node.name, _Binding(Value(inner.name)))
        for child in (*node.decorator_list, *node.bases, *node.keywords):
            self._bind_node(child, scope, module)
        for child in node.body:
            self._bind_node(child, inner, module)

    def _bind_function(self, node: _Function, scope: Scope, module: Module) -> None:
        inner = Scope(f"{scope.name}.{node.name}", scope)
        self._scopes[id(node)] = inner
        self._functions[inner.name] = node
        scope.add(node.name, _Binding(Value(inner.name)))
        self._bind_parameters(node.args, inner)
        arguments = [*node.args.posonlyargs, *node.args.args]
        marks = _names(node.decorator_list)
        if scope.is_class and arguments and "staticmethod" not in marks:
            own = Value(scope.name, made="classmethod" not in marks)
            inner.bindings[arguments[0].arg] = [_Binding(own)]
        for mark in node.decorator_list:
            self._bind_node(mark, scope, module)
        for child in (node.args, *node.body):
            self._bind_node(child, inner, module)

    def _bind_parameters(self, arguments: ast.arguments, scope: Scope) -> None:
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
        pairs = [*zip(plain, [*defaults, *arguments.defaults], strict=True)]
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        for argument, default in pairs:
            scope.add(argument.arg, _Binding(None, default, argument.annotation, scope))
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                scope.add(rest.arg, _Binding())

    def _bind_target(self, target: ast.expr, binding: _Binding, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.add(target.id, binding)
        elif isinstance(target, ast.Starred):
            self._bind_target(target.value, _Binding(), scope)
        elif isinstance(target, (ast.Tuple, ast.List)):
            source = binding.expression
            same = isinstance(source, (ast.Tuple, ast.List)) and len(source.elts) == len(target.elts)
            for index, element in enumerate(target.elts):
                part = source.elts[index] if same and isinstance(source, (ast.Tuple, ast.List)) else None
                self._bind_target(element, _Binding(None, part, None, scope), scope)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            owner = self._class_of_self(target.value.id, scope)
            if owner is not None:
                owner.attributes.setdefault(target.attr, []).append(binding)

    def _class_of_self(self, name: str, scope: Scope | None) -> Scope | None:
        """The class scope whose object `name` is, when it is the first parameter of a method around here."""
        while scope is not None and name not in scope.bindings:
            scope = scope.parent
        if scope is None or scope.parent is None or not scope.parent.is_class:
            return None
        own = any(b.value is not None and b.value.name == scope.parent.name for b in scope.bindings[name])
        return scope.parent if own else None

    # --------------------------------------------------------------------------------------------- evaluating

    def _evaluate(self, node: ast.expr, scope: Scope) -> _Values:
        match node:
            case ast.Name():
                return self._look_up(node.id, scope)
            case ast.Attribute():
                return self._attributes(self.values(node.value, scope), node.attr)
            case ast.Call():
                return self._result(node, scope)
            case ast.IfExp():
                return self.values(node.body, scope) | self.values(node.orelse, scope)
            case ast.BoolOp():
                return frozenset().union(*(self.values(part, scope) for part in node.values))
            case ast.NamedExpr() | ast.Await():
                return self.values(node.value, scope)
        return _NOTHING

    def _look_up(self, name: str, scope: Scope) -> _Values:
        current: Scope | None = scope
        while current is not None:
            if name in current.bindings and (current is scope or not current.is_class):
                return self._bound(current.bindings[name])
            if "*" in current.bindings and (found := self._starred(name, current)):
                return found
            current = current.parent
        return _NOTHING

    def _starred(self, name: str, scope: Scope) -> _Values:
        sources = [b.value.name for b in scope.bindings["*"] if b.value is not None]
        found: _Values = _NOTHING
        for source in sources:
            module = self.modules.get(source)
            if module is not None and name in self._scopes[id(module.tree)].bindings:
                found |= self.resolve(f"{source}.{name}")
        return found

    def _bound(self, bindings: Sequence[_Binding]) -> _Values:
        found: _Values = _NOTHING
        for binding in bindings:
            if binding.value is not None:
                made, name = binding.value.made, binding.value.name
                found |= frozenset([binding.value]) if made else self._imported(name)
            if binding.annotation is not None and binding.scope is not None:
                found |= self._annotated(binding.annotation, binding.scope)
            if binding.expression is not None and binding.scope is not None:
                found |= self.values(binding.expression, binding.scope)
        return found

    def _imported(self, name: str) -> _Values:
        """`resolve`, guarded against modules that import a name from each other."""
        return self._guarded(name, lambda: self.resolve(name))

    def _annotated(self, node: ast.expr, scope: Scope) -> _Values:
        """Objects of the types that an annotation names."""
        match node:
            case ast.Constant(value=str(text)):
                try:
                    self._kept.append(ast.parse(text, mode="eval").body)
                except SyntaxError:
                    return _NOTHING
                return self._annotated(self._kept[-1], scope)
            case ast.BinOp(op=ast.BitOr()):
                return self._annotated(node.left, scope) | self._annotated(node.right, scope)
            case ast.Subscript() if _names([node.value]) & _TRANSPARENT:
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                return frozenset().union(*(self._annotated(part, scope) for part in parts))
            case ast.Name() | ast.Attribute():
                return frozenset(Value(v.name, made=True) for v in self.values(node, scope) if not v.made)
        return _NOTHING

    def _attributes(self, values: _Values, attribute: str) -> _Values:
        found: _Values = _NOTHING
        for value in values:
            if value.name in self._classes:
                found |= self._member(value.name, attribute, made=value.made)
            elif value.made:
                found |= frozenset([Value(f"{value.name}.{attribute}", member=True)])
            elif not value.member:
                found |= self._imported(f"{value.name}.{attribute}")
        return found

    def _member(self, name: str, attribute: str, *, made: bool) -> _Values:
        """An attribute of a class of this tree, of what is made from it, or of its bases."""
        node = self._classes[name]
        scope = self._scopes[id(node)]
        function = self._functions.get(f"{name}.{attribute}")
        if function is not None:
            if made and _names(function.decorator_list) & _PROPERTIES:
                return self._returned(function)
            return frozenset([Value(f"{name}.{attribute}")])
        bindings = [*scope.bindings.get(attribute, ()), *scope.attributes.get(attribute, ())]
        if bindings:
            return self._bound(bindings)
        assert scope.parent is not None
        bases = frozenset().union(*(self.values(base, scope.parent) for base in node.bases))
        others = frozenset(Value(base.name, made) for base in bases if base.name != name)
        return self._attributes(others, attribute)

    def _returned(self, function: _Function) -> _Values:
        scope = self._scopes[id(function)].parent
        assert scope is not None
        return self._annotated(function.returns, scope) if function.returns is not None else _NOTHING

    def _result(self, node: ast.Call, scope: Scope) -> _Values:
        """What a call gives back."""
        called = self.values(node.func, scope)
        if not called and isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                return self._attributes(self.values(node.args[0], scope), attribute.value)
        found: _Values = _NOTHING
        for value in called:
            if value.made or value.member:
                continue
            if value.name == "functools.partial" and node.args:
                found |= self.values(node.args[0], scope)
            elif value.name == "typing.cast" and node.args:
                found |= self._annotated(node.args[0], scope)
            elif value.name in self._functions:
                found |= self._returned(self._functions[value.name])
            elif value.name in self._classes or _looks_like_a_class(value.name):
                found |= frozenset([Value(value.name, made=True)])
        return found


def _bound_by(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, _Binding]]:
    """The targets that a statement or expression gives something to, and what."""
    match node:
        case ast.Assign():
            for target in node.targets:
                yield target, _Binding(None, node.value, None, scope)
        case ast.AnnAssign():
            yield node.target, _Binding(None, node.value, node.annotation, scope)
        case ast.NamedExpr():
            yield node.target, _Binding(None, node.value, None, scope)
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            elements = node.iter.elts if isinstance(node.iter, (ast.Tuple, ast.List)) else []
            for element in elements:
                yield node.target, _Binding(None, element, None, scope)
            if not elements:
                yield node.target, _Binding()
        case ast.withitem(optional_vars=ast.expr() as target):
            yield target, _Binding(None, node.context_expr, None, scope)
        case ast.AugAssign():
            yield node.target, _Binding()
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield ast.Name(name), _Binding()


def _names(nodes: Sequence[ast.expr]) -> frozenset[str]:
    """The last part of each dotted name, `f` for `f(...)` too."""
    plain = (node.func if isinstance(node, ast.Call) else node for node in nodes)
    return frozenset(n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else "" for n in plain)


def _looks_like_a_class(name: str) -> bool:
    """By the custom of capital letters: all that is known of a name from outside of the tree."""
    last = name.rpartition(".")[2].lstrip("_")
    return last[:1].isupper() and not last.isupper()
