"""Draws stored runs as text, Markdown and JUnit's XML. Without torch."""
