"""What the network raises, and the words for it."""

from __future__ import annotations

import http.client

import requests
import urllib3

from ..masking import Mask

# ValueError: http.client raises it bare for a head that makes no sense.
NETWORK_ERRORS = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
)


def root_of(error: BaseException, ambient: BaseException | None) -> BaseException:
    """The innermost cause of a network error; `ambient` was being handled before it."""
    while True:
        inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if inner is None or inner is ambient:
            return error
        error = inner


def is_timeout(root: BaseException) -> bool:
    return isinstance(root, (TimeoutError, urllib3.exceptions.ReadTimeoutError))


def without_frames(error: BaseException) -> BaseException:
    """What interrupted a request (a timeout, Ctrl-C), without the frames of the libraries, whose
    locals hold the key: --showlocals would print them."""
    return error.with_traceback(None)


def words_of(root: BaseException, mask: Mask) -> str:
    return mask.words((str(root) or type(root).__name__).replace("\n", " "))[:200]
