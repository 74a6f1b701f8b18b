// An arena for one small message, which then needs no heap.
#ifndef ATTENTION_SERVER_RPC_MESSAGE_ARENA_H_
#define ATTENTION_SERVER_RPC_MESSAGE_ARENA_H_

#include <cstddef>

#include "google/protobuf/arena.h"

namespace attention {

class MessageArena {
 public:
  MessageArena() : arena_(Options(first_block_)) {}

  // Lives as long as the arena.
  template <typename Message>
  Message& Create() {
    return *google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }

 private:
  // What requests and answers need beside their tensors, with some to spare.
  static constexpr size_t kFirstBlockBytes = 2048;

  static google::protobuf::ArenaOptions Options(char* first_block) {
    google::protobuf::ArenaOptions options;
    options.initial_block = first_block;
    options.initial_block_size = kFirstBlockBytes;
    return options;
  }

  alignas(std::max_align_t) char first_block_[kFirstBlockBytes];
  google::protobuf::Arena arena_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_MESSAGE_ARENA_H_
