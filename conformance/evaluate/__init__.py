"""Evaluates a callable: what it returns, its gradients, and what it leaves behind. With torch."""
