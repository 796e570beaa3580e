"""Fixtures of more than one test file."""

from opencode_server import shared_opencode

__all__ = ["shared_opencode"]
