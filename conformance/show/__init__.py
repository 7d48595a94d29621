"""Stored runs as text, Markdown and SVG."""
