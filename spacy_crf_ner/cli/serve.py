"""The command `serve`."""

import socket
from contextlib import suppress
from typing import Annotated

import typer

from ..extras import required
from ..input_error import InputError
from .console import note, progress_console
from .options import Dtype, GpuId, Model
from .startup import leave_out_torch_if_exported

MAX_BATCH = 64  # as in `serving`, which needs FastAPI


def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Texts that are predicted together, at most.")
    ] = MAX_BATCH,
    gpu_id: GpuId = -1,
    dtype: Dtype = None,
) -> None:
    """Serve a pipeline over HTTP.

    \b
      POST /entities  {"text": "Tim Cook came."}     the entities of a text
      POST /batch     ["Tim Cook came.", "Hanoi"]    those of each text
      GET /health     labels, versions, the entities that the pipeline was
                      calibrated on

    Texts that arrive while a batch is predicted form the next batch. Needs the extra
    `serve`.

    \b
    Examples:
      spacy-crf-ner serve training/model-best
      spacy-crf-ner serve exported --host 0.0.0.0 --port 80
    """
    leave_out_torch_if_exported(model, dtype)
    with required("serve"):
        import uvicorn

        from ..serving import make_app
    from ..pipeline.load import load

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InputError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Choose another "
                "--port, or correct --host."
            ) from error
        app = make_app(load(model, gpu_id, dtype), max_batch)
        address = f"[{host}]" if ":" in host else host
        body = """-H 'Content-Type: application/json' -d '{"text": "Tim Cook visited Hanoi."}'"""
        note(f"Next: curl {address}:{listener.getsockname()[1]}/entities {body}")
        log_level = "warning" if progress_console().quiet else "info"
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level=log_level)).run(sockets=[listener])
