"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from dataclasses import replace

from mcpenv.cli.commands import Command

INIT = Command(help="Make a new environment's folder.", run="mcpenv.extensions.shipping.init:init", order=0)
BUILD = Command(
    help="Build the container image of an environment.", run="mcpenv.extensions.shipping.build:build", order=11
)
SHARE = Command(help="Send environments to registries and Spaces, and take those of others.", order=12)
PUSH = Command(
    help="Send an environment to a registry or a Space.", run="mcpenv.extensions.shipping.push:push", order=12
)
FORK = Command(help="Copy the environment of a Space.", run="mcpenv.extensions.shipping.fork:fork", order=13)
DEPLOY = Command(help="Write manifests for a cluster.", order=18)
K8S = Command(help="Write manifests for Kubernetes.", run="mcpenv.extensions.shipping.deploy:k8s")

UP = Command(help="Serve an environment on kind, GKE or EKS.", run="mcpenv.extensions.shipping.up:up", order=19)

OLD_PUSH = replace(PUSH, moved="share push")

OLD_FORK = replace(FORK, moved="share fork")

OLD_MANIFEST = Command(help="Show the format of mcpenv.yaml.", moved="init --manifest-schema")
MANIFEST_SCHEMA = Command(
    help="Print its JSON Schema for editors.", run="mcpenv.extensions.shipping.init:print_manifest_schema"
)
