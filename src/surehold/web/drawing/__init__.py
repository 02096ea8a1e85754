"""Drawings of the page: the places of nodes, bars and lanes.

What they show is read in `views`.
"""

from __future__ import annotations

from surehold.web.drawing.forks_drawing import draw_forks as draw_forks
from surehold.web.drawing.graph_drawing import GraphDrawing as GraphDrawing
from surehold.web.drawing.graph_drawing import graph_of as graph_of
from surehold.web.drawing.graph_drawing import graph_of_resume as graph_of_resume
from surehold.web.drawing.growth_drawing import draw_growth as draw_growth
from surehold.web.drawing.strip_drawing import draw_strip as draw_strip
from surehold.web.drawing.time_drawing import draw_times as draw_times
