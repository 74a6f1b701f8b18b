"""A small language model whose attention runs on a server, or in the process.

    client/python/generate.sh build/python
    PYTHONPATH=build/python:client/python python3 -m language_model

`model` has everything but attention, `local_attention` and `server_attention`
are two places for that, and `generation` writes texts with any of the two.
"""
