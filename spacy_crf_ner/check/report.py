"""What a check says of a corpus: findings and statistics."""

from typing import Any, Dict, List, NamedTuple

from .finding import Finding
from .statistics import Statistics


class Report(NamedTuple):
    """What was found in a corpus.

    statistics: Of each part, by its name.
    findings: Errors first, then warnings, then notes.
    """

    statistics: Dict[str, Statistics]
    findings: List[Finding]

    def of(self, severity: str) -> List[Finding]:
        """Select the findings of a severity."""
        return [finding for finding in self.findings if finding.severity == severity]

    def to_dict(self) -> Dict[str, Any]:
        """Write it as what JSON has: dicts, lists, strings and numbers."""
        return {
            "statistics": {part: s.to_dict() for part, s in self.statistics.items()},
            "findings": [
                {**finding._asdict(), "places": [place._asdict() for place in finding.places]}
                for finding in self.findings
            ],
        }
