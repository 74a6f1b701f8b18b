// Tells ThreadSanitizer what it cannot see about gRPC.
//
// The distribution's gRPC is not instrumented: what its libraries do is ignored,
// and with it the reference counts that order the end of a call after all else.
// The suppressions name only functions of gRPC's headers that never have a
// callback of ours below them on the stack, the destructor of a reactor's base,
// which runs when gRPC says that it is done, and the constructors of calls, which
// gRPC knows of when they are complete.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:detect_deadlocks=0";
}

extern "C" const char* __tsan_default_suppressions() {
  return "race:ServerCallbackUnaryImpl::ServerCallbackUnaryImpl\n"
         "race:ServerCallbackUnaryImpl::Finish\n"
         "race:ServerCallbackWriterImpl::Finish\n"
         "race:ServerCallbackReaderWriterImpl::ServerCallbackReaderWriterImpl\n"
         "race:ServerCallbackReaderWriterImpl::Finish\n"
         "race:SetupReactor\n"
         "race_top:~ServerUnaryReactor\n"
         "race_top:~ServerBidiReactor\n"
         "race:ClientCallbackReaderWriterImpl::ClientCallbackReaderWriterImpl\n"
         "race:attention::ComputeCall::ComputeCall\n"
         "race:attention::StreamCall::StreamCall\n"
         "race:grpc::internal::CallOp\n"
         "race:grpc::ServerContext\n"
         "race:grpc::ClientContext::~ClientContext\n"
         "mutex:libgrpc\n";
}
