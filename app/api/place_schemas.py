"""The JSON of places that are taken before the bytes, as clients send and see it."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PlaceWanted(BaseModel):
    """The file that will be sent: its size, its type as the client knows it, and SHA-256 in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=1)
    media_type: str = Field(pattern=r"^image/(jpeg|png|webp|gif|tiff|avif)$")
    sha256: str = Field(pattern=r"^[0-9a-fA-F]{64}$")


class PlaceShown(BaseModel):
    """A place: where and how to send the file, and what to call afterwards, until it ends."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    image_id: str
    upload_url: str
    upload_method: Literal["PUT"] = "PUT"
    upload_headers: dict[str, str]
    complete_url: str
    expires_at: datetime
