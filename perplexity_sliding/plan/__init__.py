"""Texts to token ids to windows: integers only."""
