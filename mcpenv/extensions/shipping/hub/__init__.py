"""Spaces of Hugging Face, ``hub:OWNER/NAME``: the uploaded files, and the transfer."""
