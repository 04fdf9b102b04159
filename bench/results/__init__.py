"""Figures: their names, units and goals, and the table that shows them."""
