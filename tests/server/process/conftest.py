"""Makes the generated stubs importable."""

import os
import sys

import google
import grpc

STUBS = os.environ["ATTENTION_STUBS"]

sys.path.insert(0, STUBS)
# These packages exist in the libraries; the stubs lie in further parts of them.
grpc.__path__.append(os.path.join(STUBS, "grpc"))
google.__path__.append(os.path.join(STUBS, "google"))
