#include "server/rpc/unparsed_refusal.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "server/engine/error_reason.h"
#include "server/rpc/status_translation.h"

namespace attention {
namespace {

// Of a method "/package.Service/Method".
std::string RequestNameOf(absl::string_view method) {
  const std::string name =
      absl::StrReplaceAll(absl::StripPrefix(method, "/"), {{"/", "."}});
  const auto* const descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
          name);
  return descriptor == nullptr ? absl::StrCat("request of ", name)
                               : descriptor->input_type()->name();
}

}  // namespace

class UnparsedRefusal::Interceptor final
    : public grpc::experimental::Interceptor {
 public:
  Interceptor(const char* method, RateLimitedLog* refusals)
      : method_(method), refusals_(*refusals) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (call->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE)) {
      is_unparsed_ = call->GetRecvMessage() == nullptr;
    }
    if (is_unparsed_ &&
        call->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      const absl::Status status = InvalidRequest(
          absl::StrCat("the message is not a valid ", RequestNameOf(method_)));
      refusals_.Warn("request refused", "unparsed", status);
      call->ModifySendStatus(ToGrpcStatus(status, std::nullopt));
    }
    call->Proceed();
  }

 private:
  const char* const method_;
  RateLimitedLog& refusals_;
  bool is_unparsed_ = false;
};

grpc::experimental::Interceptor* UnparsedRefusal::CreateServerInterceptor(
    grpc::experimental::ServerRpcInfo* info) {
  if (info->type() != grpc::experimental::ServerRpcInfo::Type::UNARY) {
    return nullptr;
  }
  return new Interceptor(info->method(), &refusals_);
}

}  // namespace attention
