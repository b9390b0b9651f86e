"""The message between relay and worker, and the names of the broker's objects."""

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

#: The version of the pipeline that new jobs are made for, bumped when its code gives other bytes for equal parameters.
#: The job's row decides who may work on it; in the message it tells those who look at the queue.
PIPELINE_VERSION = 1


class JobMessage(BaseModel):
    """Tells a worker to look at one job. Ids only: no bytes, no credentials; the row decides what happens."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    #: Bumped with every incompatible change of the body; what a worker cannot read goes to the dead-letter queue.
    version: Literal[1] = 1
    job_id: UUID
    pipeline_version: int = PIPELINE_VERSION


def jobs_queue(prefix: str) -> str:
    """Name of the quorum queue that workers consume. Versioned: redeclaring with other arguments fails."""
    return f"{prefix}.jobs.v1"


def dead_letter_queue(prefix: str) -> str:
    """Name of the queue that takes what the broker gave up on."""
    return f"{prefix}.jobs.v1.dead"


def dead_letter_exchange(prefix: str) -> str:
    """Name of the exchange in front of the dead-letter queue."""
    return f"{prefix}.jobs.v1.dlx"
