"""Serve a pipeline over HTTP: texts that arrive together are predicted in one batch."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from spacy.language import Language
from spacy.tokens import Doc

from . import __version__
from .annotate.entities import group_entities, join_groups, overlapping_keys
from .extras import versions
from .pipeline.given_text import CHANGED, changes_text
from .pipeline.lookup import entity_labels, recognizer, recognizer_names

MAX_BATCH = 64  # texts
MAX_CHARACTERS = 100_000  # of a text; a longer one is refused with status 422
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


def make_app(nlp: Language, max_batch: int = MAX_BATCH) -> FastAPI:
    """Make an app that answers `POST /entities`, `POST /batch` and `GET /health`.

    Args:
        nlp: The pipeline, on its device and in its dtype.
        max_batch: The number of texts that are predicted together, at most.

    Raises:
        InputError: If a component merges tokens after overlapping entities.
    """
    batches = _Batches(nlp, max_batch)
    app = FastAPI(title="spacy-crf-ner", version=__version__, lifespan=batches.running)
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
        return await batches.entities(request.text)

    @app.post("/batch")
    async def batch(texts: list[Content]) -> list[list[Entity]]:
        """Find the entities of each text."""
        return await asyncio.gather(*map(batches.entities, texts))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Describe the pipeline: labels, the entities that it was calibrated on, versions."""
        return state

    return app


class _Batches:
    """Predict the texts that wait, together, while the next ones arrive."""

    def __init__(self, nlp: Language, size: int) -> None:
        self._nlp, self._size, self._keys = nlp, size, overlapping_keys(nlp)

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        self._queue = asyncio.Queue[tuple[str, "asyncio.Future[list[Entity]]"]]()
        worker = asyncio.create_task(self._predict_batches())
        yield
        worker.cancel()

    async def entities(self, text: str) -> list[Entity]:
        """Wait for the entities of a text."""
        future: asyncio.Future[list[Entity]] = asyncio.get_running_loop().create_future()
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
                for (_, future), entities in zip(batch, found, strict=True):
                    if future.done():  # the client may have gone
                        continue
                    if entities is None:
                        reason = {"loc": ["body"], "msg": f"This text is refused: {CHANGED}."}
                        future.set_exception(HTTPException(422, [reason]))
                    else:
                        future.set_result(entities)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)

    def _predict(self, texts: Sequence[str]) -> list[list[Entity] | None]:
        """Find the entities of each text; None for a text that the tokenizer changes.

        The vocab keeps no words, or memory would grow.
        """
        with self._nlp.memory_zone():
            return [
                None if changes_text(doc, text) else self._entities(doc)
                for text, doc in zip(texts, self._nlp.pipe(texts), strict=True)
            ]

    def _entities(self, doc: Doc) -> list[Entity]:
        return [
            Entity(text=doc.text[each.start : each.end], **each._asdict())
            for each in join_groups(group_entities(doc, self._keys))
        ]
