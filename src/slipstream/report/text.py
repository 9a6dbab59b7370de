"""What a report says about a task, in the task's own words."""

from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True)
class Words:
    """The sentences of a page that differ between tasks."""

    task: str
    attempts: str
    """what an episode is called"""
    success: str
    """what a successful one does"""
    film: str
    """what the film shows"""
    tiles: dict[str, tuple[str, str]] = field(default_factory=dict)
    """figures shown first: how each is written, and what it is"""


@dataclass(frozen=True)
class Section:
    """A part of a page: one chart across it, or several beside each other."""

    title: str
    charts: list[Markup]
    note: str
