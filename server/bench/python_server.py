#!/usr/bin/env python3
"""The server that one would write in an hour: grpc, numpy and torch's SDPA.

    client/python/generate.sh build/python
    PYTHONPATH=build/python server/bench/python_server.py --listen unix:/tmp/python.sock

Serves the ComputeAttention calls that attention-load sends for bf16 tensors in
BSHD without padding: tensors are read in place with numpy.frombuffer, copied to
the GPU on one stream, computed by scaled_dot_product_attention, and copied
back. What the benchmark compares attention-server with. Needs grpcio, protobuf,
numpy and torch with CUDA.
"""

import argparse
import concurrent.futures

import grpc
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention.v1 import attention_pb2 as pb
from attention.v1 import attention_pb2_grpc

CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1),
                   ("grpc.max_send_message_length", -1),
                   ("grpc.so_reuseport", 0)]


def tensor(payload, descriptor):
  """[B, H, S, D] on the GPU, from the bytes of [B, S, H, D]."""
  # 16-bit integers, since numpy has no bf16; a view, not a copy. torch warns of
  # memory that is read-only, which it is only read from.
  host = torch.from_numpy(np.frombuffer(payload, dtype=np.int16))
  device = host.to("cuda", non_blocking=True).view(torch.bfloat16)
  return device.view(tuple(descriptor.shape)).transpose(1, 2)


class Service(attention_pb2_grpc.AttentionServiceServicer):

  def ComputeAttention(self, request, context):
    if (request.data_type != pb.DATA_TYPE_BFLOAT16
        or request.layout not in (pb.LAYOUT_UNSPECIFIED, pb.LAYOUT_BSHD)
        or request.query_lengths or request.key_lengths):
      context.abort(grpc.StatusCode.UNIMPLEMENTED, "bf16 in BSHD only")
    with torch.inference_mode():
      q = tensor(request.query, request.query_descriptor)
      k = tensor(request.key, request.key_descriptor)
      v = tensor(request.value, request.value_descriptor)
      output = scaled_dot_product_attention(
          q, k, v, enable_gqa=q.shape[1] != k.shape[1],
          is_causal=request.mask_type == pb.MASK_TYPE_CAUSAL_TOP_LEFT,
          scale=request.scale if request.HasField("scale") else None)
      output = output.transpose(1, 2).contiguous()
      host = output.view(torch.int16).cpu().numpy()
    return pb.ComputeAttentionResponse(
        data_type=request.data_type,
        output_descriptor=pb.TensorDescriptor(shape=output.shape),
        output=host.tobytes())

  def GetServerInfo(self, request, context):
    return pb.GetServerInfoResponse(version="python", backend="cuda")


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--listen", required=True)
  parser.add_argument("--threads", type=int, default=4)
  arguments = parser.parse_args()
  torch.ones(1, device="cuda")  # before the first request
  server = grpc.server(
      concurrent.futures.ThreadPoolExecutor(max_workers=arguments.threads),
      options=CHANNEL_OPTIONS)
  attention_pb2_grpc.add_AttentionServiceServicer_to_server(Service(), server)
  port = server.add_insecure_port(arguments.listen)
  server.start()
  print("listening", arguments.listen, port, flush=True)
  server.wait_for_termination()


if __name__ == "__main__":
  main()
