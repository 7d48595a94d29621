"""Holds the version of this project, installed or not."""

from __future__ import annotations

VERSION = "0.1.0"
