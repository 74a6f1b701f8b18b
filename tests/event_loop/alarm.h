// An event of which gRPC knows at once.
#ifndef ATTENTION_TESTS_EVENT_LOOP_ALARM_H_
#define ATTENTION_TESTS_EVENT_LOOP_ALARM_H_

#include <chrono>
#include <functional>
#include <utility>

#include "event_loop/event_loop.h"
#include "grpcpp/alarm.h"

namespace attention {

class Alarm final : public Event {
 public:
  Alarm(EventLoop& loop, std::function<void()> handle)
      : loop_(loop), handle_(std::move(handle)) {}
  void Raise() {
    alarm_.Set(loop_.queue(), std::chrono::system_clock::time_point(), Tag());
  }

 private:
  void OnEvent(bool) override { handle_(); }

  EventLoop& loop_;
  const std::function<void()> handle_;
  grpc::Alarm alarm_;
};

}  // namespace attention

#endif  // ATTENTION_TESTS_EVENT_LOOP_ALARM_H_
