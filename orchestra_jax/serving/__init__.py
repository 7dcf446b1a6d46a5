"""Serve a trained orchestrator: answers to a user's questions, and an OpenAI-compatible server."""
