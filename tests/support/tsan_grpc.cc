// Tells ThreadSanitizer what it cannot see about gRPC.
//
// The distribution's gRPC is not instrumented: what its libraries do is
// ignored, and with it the order that they establish. gRPC does not join its
// threads before the program ends. The suppressions are for
// - the classes of its headers for operations, which the one who starts them
//   writes and the thread that takes the event reads; the events order what is
//   ours (event_loop/event_loop.h), and nothing of ours is below them on the
//   stack;
// - what it calls once nobody holds a slice any more, which it counts;
// - the mutexes that it hands over to Abseil.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:detect_deadlocks=0:"
         "report_thread_leaks=0";
}

extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::CallOp\n"
         "race:grpc_core::NewSliceRefcount::Destroy\n"
         "mutex:libgrpc\n";
}
