"""Axes, colours and marks that all plots share."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GREY, GRID = "#1f4e79", "#9db4c8", "#e6e6e6"
DOTS = {"fmt": "o", "color": INK, "ecolor": GREY, "elinewidth": 1.5, "capsize": 3, "markersize": 5}


def new_axes(figure: Figure, grid: str) -> Axes:
    return tidied(figure.add_subplot(), grid)


def tidied(axes: Axes, grid: str) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
    return axes
