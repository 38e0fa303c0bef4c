"""Manifests that serve an environment on Kubernetes."""
