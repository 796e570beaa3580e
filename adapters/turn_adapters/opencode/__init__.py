"""The adapter to OpenCode (v1 interface, tried with 1.18.33)."""

from turn_adapters.opencode.attached import AttachedOpenCode
from turn_adapters.opencode.client import OpenCodeAssistant
from turn_adapters.opencode.process import OpenCodeServer

__all__ = ["AttachedOpenCode", "OpenCodeAssistant", "OpenCodeServer"]
