"""Draws stored runs as text, Markdown, HTML and JUnit's XML. Without torch."""
