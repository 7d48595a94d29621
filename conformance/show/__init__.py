"""Draws stored runs as text, Markdown and SVG. Without torch."""
