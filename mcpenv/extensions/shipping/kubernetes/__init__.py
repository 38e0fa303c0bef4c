"""Manifests that serve an environment on Kubernetes, and rules that find mistakes in manifests offline."""
