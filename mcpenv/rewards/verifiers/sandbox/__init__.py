"""The sandboxes that run the code of verifiers."""
