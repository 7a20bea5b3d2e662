"""From a published figure to the settings that give it."""
