"""Signatures and annotations of other people's functions, also where these name what cannot be evaluated.

From Python 3.14 on, an annotation is evaluated when somebody asks for it. It may name what is imported for
type checking alone, or a class that is defined further down: whoever asks for its value meets a NameError.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature


def signature_of(function: Callable[..., Any]) -> "Signature":
    """The signature of a function; in it a `ForwardRef` stands for a name that is not defined."""
    from inspect import signature

    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return signature(function, annotation_format=Format.FORWARDREF)
    return signature(function)


def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of a function; in them a `ForwardRef` stands for a name that is not defined."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(function, format=Format.FORWARDREF)
    found: Mapping[str, Any] = getattr(function, "__annotations__", {})
    return found
