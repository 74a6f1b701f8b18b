// Tells ThreadSanitizer what it cannot see about gRPC.
//
// The distribution's gRPC is not instrumented: what its libraries do is
// ignored, and with it the order that they establish between the start of a
// call and its end. The suppressions cover gRPC's own state in its headers and
// the mutexes that it hands over to Abseil, and name only functions that never
// have a callback of ours below them on the stack, and the constructors of
// streams, which gRPC knows of when they are complete; the client orders its own
// state by mutexes of its own. gRPC does not join its threads before the
// program ends.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:report_thread_leaks=0";
}

extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::CallbackUnaryCallImpl\n"
         "race:grpc::internal::ClientCallbackReaderWriterFactory\n"
         "race:attention::AppendAttempt::AppendAttempt\n"
         "race:attention::DecodeStreamImpl::DecodeStreamImpl\n"
         "race:attention::StreamAttempt::StreamAttempt\n"
         "race:grpc::internal::CallOp\n"
         "race:grpc::ServerContext\n"
         "race:grpc::ClientContext::~ClientContext\n"
         "race:__tsan_mutex_pre_lock\n"
         "race:__tsan_mutex_post_lock\n"
         "mutex:libgrpc\n";
}
