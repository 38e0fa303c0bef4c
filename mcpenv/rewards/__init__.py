"""Rewards: values with components, rubrics and verifiers."""
