"""What stands between uvicorn and the planes: protocols, bodies, limits."""
