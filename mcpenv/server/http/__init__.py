"""The layer between uvicorn and the planes: protocols, bodies, limits."""
