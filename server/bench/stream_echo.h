// Streams that are echoed: what gRPC alone takes for the steps of decoding.
#ifndef ATTENTION_SERVER_BENCH_STREAM_ECHO_H_
#define ATTENTION_SERVER_BENCH_STREAM_ECHO_H_

#include <cstddef>
#include <optional>

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/memory/memory_pool.h"
#include "server/transport/call_acceptor.h"

namespace attention {

// The bytes that the call asks for in its metadata (kAnswerBytesKey).
std::optional<size_t> AnswerBytesOf(const grpc::ServerContextBase& context);

// A message of so many bytes, in a pooled block as after a copy from a device.
grpc::ByteBuffer AnswerFrom(Block block);

// Answers each message of a stream with one of as many bytes as its call asks
// for: on gRPC's callback threads, or, for "StreamDecode", from a completion
// queue by way of server/transport. Own themselves; `pool` outlives them.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartStreamEcho(
    const grpc::ServerContextBase& context, MemoryPool* pool);
MethodTable StreamEchoMethods(MemoryPool* pool);

}  // namespace attention

#endif  // ATTENTION_SERVER_BENCH_STREAM_ECHO_H_
