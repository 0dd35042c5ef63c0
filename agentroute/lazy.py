"""An attribute that is worked out when it is first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801, as cached_property
    """``functools.cached_property`` without its lock, which takes as long as a small array operation (Python 3.11).

    Two threads that read it at once work it out twice, to the same value.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make, self._name, self.__doc__ = make, make.__name__, make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._make(instance)
        return value
