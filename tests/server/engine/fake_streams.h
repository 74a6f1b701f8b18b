// Streams and events of FakeCudaRuntime.
#ifndef ATTENTION_TESTS_SERVER_ENGINE_FAKE_STREAMS_H_
#define ATTENTION_TESTS_SERVER_ENGINE_FAKE_STREAMS_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace attention::test {

// When streams do what they have been given, as early or as late as real ones
// may.
enum class StreamPace {
  // When they are waited for: memory that is given up too early shows.
  kLate,
  // At once: what does not wait for what is enqueued later shows.
  kEarly,
  // Late, but before the stream that is waited for: missing waits show.
  kOthersFirst,
};

// For all streams; the default is kLate. Not while anything is under way.
void SetStreamPace(StreamPace pace);

struct FakeOperations;

// A point in a stream.
class FakeEvent {
 public:
  // Whether it was recorded and everything before it is done.
  bool has_happened() const;

 private:
  friend class FakeStream;
  std::shared_ptr<FakeOperations> operations_;  // null: not recorded
  int64_t end_ = 0;  // of its operations, counted from the stream's beginning
};

// Thread-safe, and so are events, also across streams of several threads.
class FakeStream {
 public:
  FakeStream();
  // Fails the test if something has not been waited for.
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  void Enqueue(std::function<void()> operation);
  void Record(FakeEvent& event);
  void Wait(const FakeEvent& event);
  // Everything, and what it waits for on other streams.
  void Run();
  // Forgets everything.
  void Discard();

 private:
  const std::shared_ptr<FakeOperations> operations_;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_ENGINE_FAKE_STREAMS_H_
