"""Each number's rank among those with the same last digit."""

from ranking.operator import Ranks

__all__ = ["Ranks"]
