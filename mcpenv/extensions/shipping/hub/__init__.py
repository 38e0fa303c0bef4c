"""Spaces of Hugging Face, ``hub:OWNER/NAME``: what is uploaded, and the transfer."""
