"""Signatures and annotations of functions that may have names which only type checkers know.

Since Python 3.14 annotations are evaluated when they are read, and `inspect.signature` reads them. An unknown name is an error
there, as it was at the definition of the function before. Here it stays a name.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["annotations_of", "signature_of"]

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function; an annotation with unknown names is an `annotationlib.ForwardRef`."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
        """Return the annotations of a function; one with unknown names is an `annotationlib.ForwardRef`."""
        return get_annotations(function, format=Format.FORWARDREF)

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function."""
        return inspect.signature(function)

    def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
        """Return the annotations of a function."""
        found: Mapping[str, Any] = getattr(function, "__annotations__", {})
        return found
