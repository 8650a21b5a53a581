"""Serve a pipeline over HTTP. Requests that arrive together are predicted in one batch."""

import asyncio
import os
from contextlib import asynccontextmanager

import spacy
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import spacy_crf_ner

MAX_BATCH = 64  # texts
MAX_CHARACTERS = 100_000  # of a text; a longer one is refused with status 422
nlp = spacy_crf_ner.accelerate(spacy.load(os.environ["MODEL"]))


class Text(BaseModel):
    text: str = Field(max_length=MAX_CHARACTERS)


def predict(texts):
    """Find the entities of each text. The vocab keeps no words, or memory would grow."""
    with nlp.memory_zone():
        return [
            [
                {
                    "start": ent.start_char,
                    "end": ent.end_char,
                    "text": ent.text,
                    "label": ent.label_,
                    "confidence": ent._.confidence,
                }
                for ent in doc.ents
            ]
            for doc in nlp.pipe(texts)
        ]


async def predict_batches(queue):
    """Wait for a text, then predict it together with all others that are waiting."""
    while True:
        batch = [await queue.get()]
        while len(batch) < MAX_BATCH and not queue.empty():
            batch.append(queue.get_nowait())
        try:
            found = await asyncio.to_thread(predict, [text for text, _ in batch])
            for (_, future), ents in zip(batch, found, strict=True):
                if not future.done():  # the client may have gone
                    future.set_result(ents)
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)


@asynccontextmanager
async def lifespan(app):
    app.state.queue = asyncio.Queue()
    worker = asyncio.create_task(predict_batches(app.state.queue))
    yield
    worker.cancel()


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RequestValidationError)
async def refuse(request, error):
    """Say what is wrong, without the text: it may be long, or have half of an emoji."""
    reasons = [{"loc": each["loc"], "msg": each["msg"]} for each in error.errors()]
    return JSONResponse({"detail": reasons}, status_code=422)


@app.post("/entities")
async def entities(request: Text):
    future = asyncio.get_running_loop().create_future()
    await app.state.queue.put((request.text, future))
    return await future
