"""Checkpoints in a bucket of Google Cloud Storage; loaded by a run whose `checkpoint.folder` is one.

Orbax writes there with TensorStore (arrays) and with gcsfs (everything else), and asks Google's own library about the
bucket when it deletes a checkpoint. Each has a client and finds its credentials itself.
"""

import logging
import os
import queue
import threading
import uuid
from typing import Any

import tensorstore
from etils import epath

from orchestra_jax.processes import Processes
from orchestra_jax.training.checkpoint_names import NAME, checkpoints_in

_DEADLINE_S = 30.0
_RETRIES = 2  # of TensorStore, which otherwise tries 32 times


def bucket_problems(folder: str) -> list[str]:
    """Return a sentence if this process cannot write, read and delete in the folder (gs://BUCKET/PATH)."""
    logging.getLogger("gcsfs").setLevel(logging.ERROR)  # it warns at every call if it may not see the bucket's kind
    answers = queue.SimpleQueue[str | None]()
    # A thread that nobody waits for: some clients try for minutes to reach a server that is not there.
    threading.Thread(target=lambda: answers.put(_problem(folder)), name="bucket", daemon=True).start()
    try:
        found = answers.get(timeout=_DEADLINE_S)
    except queue.Empty:
        found = f"it did not answer within {_DEADLINE_S:g} s. Is the network up?"
    return [f"checkpoint.folder={folder} cannot be used: {found}"] if found else []


def _problem(folder: str) -> str | None:
    """Return what goes wrong with a small object, through all three libraries, and how to mend it."""
    try:
        import gcsfs  # noqa: F401 - what Etils' path of a bucket needs
        import google.auth
        from google.api_core.exceptions import NotFound
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage
    except ImportError as error:
        return f"{error.name} is not installed. pip install 'orchestra-jax[gcs]'."
    name = folder.removeprefix("gs://").partition("/")[0]
    try:
        if not os.environ.get("STORAGE_EMULATOR_HOST"):  # an emulator asks for no credentials
            google.auth.default()
        storage.Client().get_bucket(name, timeout=_DEADLINE_S, retry=None)
        probe = epath.Path(folder) / f".write-test-{uuid.uuid4().hex}"
        _write(name, str(probe).removeprefix(f"gs://{name}/"))
        probe.read_bytes()
        probe.unlink()
    except DefaultCredentialsError:
        return (
            "there are no credentials of Google Cloud. Run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the file of a service account."
        )
    except NotFound:
        return f"there is no bucket {name!r}. Make it (`gcloud storage buckets create gs://{name}`), or name another."
    except Exception as error:  # each library has its own errors
        said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        return (
            f"{said}. The account must see the bucket (role Storage Legacy Bucket Reader) and write and delete objects "
            "in it (role Storage Object User)."
        )
    return None


def _write(bucket: str, path: str) -> None:
    """Write an object as the arrays of a checkpoint are written."""
    context = tensorstore.Context({"gcs_request_retries": {"max_retries": _RETRIES}})
    store = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket}, context=context).result()
    store.write(path, b"x").result()


def remove_unfinished(directory: Any, processes: Processes) -> None:
    """Remove what unfinished saves left, so that they can be made again; all processes call this."""
    with processes.together():
        if processes.first:
            whole = {path.name for _, path in checkpoints_in(directory)}
            for path in directory.iterdir():
                if NAME.fullmatch(path.name) and path.name not in whole:
                    path.rmtree()
