"""Agents and fleets, with their models and tools, and the resilient manager."""
