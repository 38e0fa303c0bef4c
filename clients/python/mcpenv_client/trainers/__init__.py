"""Adapters for trainers, one module each. Import the module of your trainer; it needs the library of that name."""
