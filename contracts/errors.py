"""The closed sets of error codes. Nothing outside them ever reaches a client; no library's own text does."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Codes of HTTP answers that are not a success; `app.api.errors` maps each to its status."""

    MALFORMED_REQUEST = "malformed_request"
    TRUNCATED_BODY = "truncated_body"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_READY = "not_ready"
    KEY_CONFLICT = "key_conflict"
    KEY_IN_USE = "key_in_use"
    ALREADY_FINAL = "already_final"
    ALREADY_ATTACHED = "already_attached"
    NOT_FAILED = "not_failed"
    SOURCE_MISSING = "source_missing"
    UPLOAD_INCOMPLETE = "upload_incomplete"
    EXPIRED = "expired"
    RANGE_NOT_SATISFIABLE = "range_not_satisfiable"
    UPLOAD_TOO_SLOW = "upload_too_slow"
    HEADERS_TOO_LARGE = "headers_too_large"
    INTERNAL = "internal"
    TOO_MANY_BYTES = "too_many_bytes"
    UNSUPPORTED_FORMAT = "unsupported_format"
    INVALID_FIELD = "invalid_field"
    DIGEST_MISMATCH = "digest_mismatch"
    EMPTY_FILE = "empty_file"
    TOO_MANY_PIXELS = "too_many_pixels"
    TOO_LARGE_DIMENSION = "too_large_dimension"
    OWNER_LIMIT = "owner_limit"
    RATE_LIMITED = "rate_limited"
    BACKLOG_FULL = "backlog_full"
    STAGING_FULL = "staging_full"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    RESERVATION_LOST = "reservation_lost"
    SHUTTING_DOWN = "shutting_down"


class FailureCode(StrEnum):
    """Codes of jobs that ended `failed`."""

    INVALID_IMAGE = "invalid_image"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TOO_MANY_PIXELS = "too_many_pixels"
    TOO_LARGE_DIMENSION = "too_large_dimension"
    IMAGE_TOO_COMPLEX = "image_too_complex"
    IMAGE_TIME_LIMIT = "image_time_limit"
    IMAGE_MEMORY_LIMIT = "image_memory_limit"
    SOURCE_MISSING = "source_missing"
    WORKER_LOST = "worker_lost"
    RETRIES_EXHAUSTED = "retries_exhausted"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"  #: shown of attachments only; a cancelled job is `cancelled`
    INTERNAL = "internal"


#: What a person reads for each failure; the code is the stable part.
FAILURE_MESSAGES: dict[FailureCode, str] = {
    FailureCode.INVALID_IMAGE: "The file is not a whole, readable image.",
    FailureCode.UNSUPPORTED_FORMAT: "The image format is not supported.",
    FailureCode.TOO_MANY_PIXELS: "The image has too many pixels.",
    FailureCode.TOO_LARGE_DIMENSION: "A side of the image is too long.",
    FailureCode.IMAGE_TOO_COMPLEX: "The image's structure is too complex to decode safely.",
    FailureCode.IMAGE_TIME_LIMIT: "Processing the image took too long.",
    FailureCode.IMAGE_MEMORY_LIMIT: "Processing the image needed too much memory.",
    FailureCode.SOURCE_MISSING: "The uploaded file is no longer in the store.",
    FailureCode.WORKER_LOST: "Processing ended abnormally too many times.",
    FailureCode.RETRIES_EXHAUSTED: "Processing failed too many times for passing reasons.",
    FailureCode.DEADLINE_EXCEEDED: "The job could not be finished in time.",
    FailureCode.CANCELLED: "The job was cancelled.",
    FailureCode.INTERNAL: "Processing failed for an internal reason.",
}


#: The same in Russian.
FAILURE_MESSAGES_RU: dict[FailureCode, str] = {
    FailureCode.INVALID_IMAGE: "Файл не является целым, читаемым изображением.",
    FailureCode.UNSUPPORTED_FORMAT: "Формат изображения не поддерживается.",
    FailureCode.TOO_MANY_PIXELS: "Слишком много пикселей.",
    FailureCode.TOO_LARGE_DIMENSION: "Слишком длинная сторона изображения.",
    FailureCode.IMAGE_TOO_COMPLEX: "Структура изображения слишком сложна для безопасного раскодирования.",
    FailureCode.IMAGE_TIME_LIMIT: "Обработка изображения заняла слишком много времени.",
    FailureCode.IMAGE_MEMORY_LIMIT: "Для обработки изображения не хватило памяти.",
    FailureCode.SOURCE_MISSING: "Загруженного файла больше нет в хранилище.",
    FailureCode.WORKER_LOST: "Обработка слишком часто обрывалась.",
    FailureCode.RETRIES_EXHAUSTED: "Обработка слишком часто не удавалась по временным причинам.",
    FailureCode.DEADLINE_EXCEEDED: "Задача не была выполнена вовремя.",
    FailureCode.CANCELLED: "Задача отменена.",
    FailureCode.INTERNAL: "Обработка не удалась по внутренней причине.",
}


class Language(StrEnum):
    """Languages of the messages for people; the first is the default."""

    ENGLISH = "en"
    RUSSIAN = "ru"


def failure_message(code: FailureCode, *, language: Language) -> str:
    """Return what a person reads for a failure."""
    return (FAILURE_MESSAGES_RU if language is Language.RUSSIAN else FAILURE_MESSAGES)[code]


class ServiceError(Exception):
    """An anticipated refusal with a code of the closed set.

    `message` is for people, `retry_after_s` is the least wait before another try, or None when a retry is useless.
    """

    def __init__(self, code: ErrorCode, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
