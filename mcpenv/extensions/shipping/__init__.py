"""Make, build, push, copy and deploy environments."""
