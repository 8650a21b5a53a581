"""Serve a pipeline over HTTP: texts that arrive together are predicted in one batch."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from spacy.language import Language
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import __version__
from .annotate.chunking import MAX_CHARACTERS
from .annotate.entities import overlapping_keys
from .annotate.runner import annotate_texts
from .annotate.settings import Settings
from .extras import versions
from .pipeline.given_text import CHANGED
from .pipeline.lookup import entity_labels, recognizer, recognizer_names

MAX_BATCH = 64  # texts that are predicted together
# Of a request: more texts, and longer ones, have status 422; a larger body has status 413.
MAX_TEXTS = 1000
MAX_BYTES = 10 * 2**20
LOGGER = logging.getLogger(__name__)
PACKAGES = "spacy-crf-ner", "spacy", "torch", "onnxruntime"

Content = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class Text(BaseModel):
    """The body of a request for the entities of a text."""

    text: Content


class Entity(BaseModel):
    """An entity, in characters of its text; overlapping entities are served too."""

    start: int
    end: int
    text: str
    label: str
    confidence: float | None


class Failure(BaseModel):
    """Why a text has no entities."""

    error: str


def make_app(nlp: Language, max_batch: int = MAX_BATCH) -> FastAPI:
    """Make an app that answers `POST /entities`, `POST /batch` and `GET /health`.

    A request has at most 10 MiB and 1000 texts, each of at most 100,000 characters.

    Args:
        nlp: The pipeline, on its device and in its dtype.
        max_batch: The number of texts that are predicted together, at most.

    Raises:
        InputError: If a component merges tokens after overlapping entities.
    """
    batches = _Batches(nlp, max_batch)
    app = FastAPI(title="spacy-crf-ner", version=__version__, lifespan=batches.running)
    app.add_middleware(_LimitedBody)
    labels = entity_labels(nlp)
    state = {
        "ready": True,  # the server listens once the pipeline is loaded
        "labels": None if labels is None else sorted(labels),
        "calibrated_on": {
            each: recognizer(nlp, each).calibrated_on for each in recognizer_names(nlp)
        },
        "versions": versions(PACKAGES),
    }

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        """Say what is wrong, without the text: it may be long, or have half of an emoji."""
        reasons = [{"loc": each["loc"], "msg": each["msg"]} for each in error.errors()]
        return JSONResponse({"detail": reasons}, status_code=422)

    @app.post("/entities")
    async def entities(request: Text) -> list[Entity]:
        """Find the entities of a text."""
        found = await batches.entities(request.text)
        if isinstance(found, Failure):
            reason = {"loc": ["body"], "msg": f"This text is refused: {found.error}."}
            raise HTTPException(422 if CHANGED in found.error else 500, [reason])
        return found

    @app.post("/batch")
    async def batch(
        texts: Annotated[list[Content], Field(max_length=MAX_TEXTS)],
    ) -> list[list[Entity] | Failure]:
        """Find the entities of each text, or say why there are none."""
        return await asyncio.gather(*map(batches.entities, texts))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Describe the pipeline: labels, the entities that it was calibrated on, versions."""
        return state

    return app


class _LimitedBody:
    """Refuse a request whose body is too large, before it is in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BYTES:
                raise HTTPException(413, f"Expected at most {MAX_BYTES:,} bytes. Send fewer texts.")
            return message

        await self._app(scope, limited, send)


class _Batches:
    """Predict the texts that wait, together, while the next ones arrive."""

    def __init__(self, nlp: Language, size: int) -> None:
        overlapping_keys(nlp)  # raises InputError for a pipeline that loses some of them
        self._nlp, self._size = nlp, size

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        self._queue = asyncio.Queue[tuple[str, "asyncio.Future[list[Entity] | Failure]"]]()
        worker = asyncio.create_task(self._predict_batches())
        yield
        worker.cancel()

    async def entities(self, text: str) -> list[Entity] | Failure:
        """Wait for the entities of a text."""
        future: asyncio.Future[list[Entity] | Failure] = asyncio.get_running_loop().create_future()
        await self._queue.put((text, future))
        return await future

    async def _predict_batches(self) -> None:
        """Wait for a text, then predict it together with all others that are waiting."""
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._size and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                found = await asyncio.to_thread(self._predict, [text for text, _ in batch])
                for (_, future), of_text in zip(batch, found, strict=True):
                    if not future.done():  # the client may have gone
                        future.set_result(of_text)
            except Exception as error:  # of the machine
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)

    def _predict(self, texts: Sequence[str]) -> list[list[Entity] | Failure]:
        """Find the entities of each text. The vocab keeps few words, or memory would grow."""
        found: list[list[Entity] | Failure] = []
        for each in annotate_texts(self._nlp, texts, Settings()):
            if each.error is not None:
                LOGGER.error(
                    "No entities of a text of %d characters: %s", len(each.text), each.error
                )
                found.append(Failure(error=each.error))
                continue
            entities = (Entity(text=each.text[e["start"] : e["end"]], **e) for e in each.entities)
            found.append([*entities])
        return found
