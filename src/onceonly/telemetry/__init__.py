"""Traces with OpenTelemetry: `Endpoint(..., telemetry=OpenTelemetry())`.

It needs `pip install 'onceonly[opentelemetry]'`. Spans and attributes follow the semantic conventions for messaging, version
1.44.0. docs/how-to/telemetry.md lists them.
"""

from onceonly.telemetry.settings import OpenTelemetry

__all__ = ["OpenTelemetry"]
