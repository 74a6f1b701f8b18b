#include "tests/client/cpp/fake_session_server.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace attention {
namespace {

grpc::Status Error(grpc::StatusCode code, const std::string& reason,
                   const std::map<std::string, std::string>& facts = {}) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("attention.v1");
  info.mutable_metadata()->insert(facts.begin(), facts.end());
  google::rpc::Status details;
  details.set_code(code);
  details.add_details()->PackFrom(info);
  return grpc::Status(code, reason, details.SerializeAsString());
}

v1::StepError StepErrorOf(const grpc::Status& status) {
  v1::StepError error;
  error.set_code(status.error_code());
  error.set_message(status.error_message());
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (details.ParseFromString(status.error_details()) &&
      details.details_size() > 0 && details.details(0).UnpackTo(&info)) {
    error.set_reason(info.reason());
    *error.mutable_metadata() = info.metadata();
  }
  return error;
}

std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

void AppendFloat(float value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

FakeSessionServer::FakeSessionServer(Fault fault) : fault_(std::move(fault)) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  target_ = absl::StrCat("127.0.0.1:", port);
}

FakeSessionServer::~FakeSessionServer() { server_->Shutdown(); }

void FakeSessionServer::ForgetSessions() {
  absl::MutexLock lock(&mutex_);
  sessions_.clear();
}

std::vector<float> FakeSessionServer::Values(const std::string& session,
                                             int32_t layer) {
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? std::vector<float>()
                                  : found->second.layers.at(layer);
}

std::vector<std::string> FakeSessionServer::calls() {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

std::string FakeSessionServer::tenant() {
  absl::MutexLock lock(&mutex_);
  return tenant_;
}

grpc::Status FakeSessionServer::Run(grpc::ServerContext* context,
                                    const std::string& method,
                                    const std::function<grpc::Status()>& work) {
  {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(method);
    const auto tenant = context->client_metadata().find("attention-tenant");
    tenant_ = tenant == context->client_metadata().end()
                  ? ""
                  : std::string(tenant->second.data(), tenant->second.size());
  }
  if (fault_) {
    grpc::Status status = fault_(context, method, false);
    if (!status.ok()) return status;
  }
  {
    absl::MutexLock lock(&mutex_);
    grpc::Status status = work();
    if (!status.ok()) return status;
  }
  return fault_ ? fault_(context, method, true) : grpc::Status::OK;
}

grpc::Status FakeSessionServer::With(
    const std::string& name,
    const std::function<grpc::Status(FakeSession&)>& work) {
  const auto found = sessions_.find(name);
  if (found != sessions_.end()) return work(found->second);
  return Error(grpc::StatusCode::NOT_FOUND, "SESSION_NOT_FOUND");
}

std::string FakeSessionServer::Add(FakeSession session) {
  const std::string name = absl::StrFormat("sessions/fake.%032d", next_id_++);
  session.proto.set_name(name);
  sessions_[name] = std::move(session);
  return name;
}

v1::Session FakeSessionServer::ToProto(const FakeSession& session) {
  v1::Session proto = session.proto;
  for (const auto& layer : session.layers) {
    proto.add_layer_token_counts(static_cast<int64_t>(layer.size()));
  }
  return proto;
}

template <typename Message>
grpc::Status FakeSessionServer::Append(const Message& step,
                                       const std::string& session,
                                       const std::string& values) {
  return With(session, [&](FakeSession& found) {
    std::vector<float>& layer = found.layers.at(step.layer());
    const auto count = static_cast<int64_t>(layer.size());
    const std::map<std::string, std::string> facts = {
        {"token_count", absl::StrCat(count)}};
    if (step.has_expected_position() && step.expected_position() < count) {
      return Error(grpc::StatusCode::ALREADY_EXISTS, "POSITION_TAKEN", facts);
    }
    if (step.has_expected_position() && step.expected_position() > count) {
      return Error(grpc::StatusCode::OUT_OF_RANGE, "POSITION_GAP", facts);
    }
    for (const float value : Floats(values)) layer.push_back(value);
    return grpc::Status::OK;
  });
}

std::string FakeSessionServer::Attend(const std::string& session, int32_t layer,
                                      const std::string& query,
                                      std::string* log_sum_exp) {
  const std::vector<float>& values = sessions_.at(session).layers.at(layer);
  const std::vector<float> queries = Floats(query);
  std::string output;
  for (size_t i = 0; i < queries.size(); ++i) {
    const size_t seen = values.size() - queries.size() + i + 1;
    float sum = 0;
    for (size_t j = 0; j < seen; ++j) sum += values[j];
    AppendFloat(queries[i] * sum, &output);
    if (log_sum_exp != nullptr) {
      AppendFloat(static_cast<float>(seen), log_sum_exp);
    }
  }
  return output;
}

template <typename Request, typename Response>
void FakeSessionServer::DecodeItems(const Request& request,
                                    Response* response) {
  size_t offset = 0;
  std::string output;
  std::string log_sum_exp;
  for (int i = 0; i < request.items_size(); ++i) {
    const v1::DecodeItem& item = request.items(i);
    const size_t bytes = item.token_count() * sizeof(float);
    const grpc::Status status =
        Append(item, item.session(), request.value().substr(offset, bytes));
    if (status.ok()) {
      output += Attend(item.session(), item.layer(),
                       request.query().substr(offset, bytes), &log_sum_exp);
    } else {
      v1::ItemError& error = *response->add_item_errors();
      error.set_item_index(i);
      *error.mutable_error() = StepErrorOf(status);
      for (int64_t t = 0; t < item.token_count(); ++t) {
        AppendFloat(0, &output);
        AppendFloat(-std::numeric_limits<float>::infinity(), &log_sum_exp);
      }
    }
    offset += bytes;
  }
  if (response->item_errors_size() == request.items_size()) return;
  response->set_output(std::move(output));
  if (request.return_log_sum_exp()) {
    response->set_log_sum_exp(std::move(log_sum_exp));
  }
}

grpc::Status FakeSessionServer::CreateSession(
    grpc::ServerContext* context, const v1::CreateSessionRequest* request,
    v1::CreateSessionResponse* response) {
  return Run(context, "CreateSession", [&] {
    mutex_.AssertHeld();
    FakeSession session;
    *session.proto.mutable_configuration() = request->configuration();
    session.proto.set_reserved_token_count(request->reserved_token_count());
    *session.proto.mutable_ttl() = request->ttl();
    session.layers.resize(request->configuration().layer_count());
    *response->mutable_session() =
        ToProto(sessions_.at(Add(std::move(session))));
    return grpc::Status::OK;
  });
}

grpc::Status FakeSessionServer::GetSession(grpc::ServerContext* context,
                                           const v1::GetSessionRequest* request,
                                           v1::GetSessionResponse* response) {
  return Run(context, "GetSession", [&] {
    mutex_.AssertHeld();
    return With(request->name(), [&](FakeSession& session) {
      *response->mutable_session() = ToProto(session);
      return grpc::Status::OK;
    });
  });
}

// One session a page.
grpc::Status FakeSessionServer::ListSessions(
    grpc::ServerContext* context, const v1::ListSessionsRequest* request,
    v1::ListSessionsResponse* response) {
  return Run(context, "ListSessions", [&] {
    mutex_.AssertHeld();
    const auto it = sessions_.upper_bound(request->page_token());
    if (it == sessions_.end()) return grpc::Status::OK;
    *response->add_sessions() = it->second.proto;
    if (std::next(it) != sessions_.end()) {
      response->set_next_page_token(it->first);
    }
    return grpc::Status::OK;
  });
}

grpc::Status FakeSessionServer::DeleteSession(
    grpc::ServerContext* context, const v1::DeleteSessionRequest* request,
    v1::DeleteSessionResponse*) {
  return Run(context, "DeleteSession", [&] {
    mutex_.AssertHeld();
    return sessions_.erase(request->name()) > 0
               ? grpc::Status::OK
               : Error(grpc::StatusCode::NOT_FOUND, "SESSION_NOT_FOUND");
  });
}

grpc::Status FakeSessionServer::RenewSession(
    grpc::ServerContext* context, const v1::RenewSessionRequest* request,
    v1::RenewSessionResponse* response) {
  return Run(context, "RenewSession", [&] {
    mutex_.AssertHeld();
    return With(request->name(), [&](FakeSession& session) {
      if (request->has_ttl()) *session.proto.mutable_ttl() = request->ttl();
      *response->mutable_session() = ToProto(session);
      return grpc::Status::OK;
    });
  });
}

grpc::Status FakeSessionServer::ForkSession(
    grpc::ServerContext* context, const v1::ForkSessionRequest* request,
    v1::ForkSessionResponse* response) {
  return Run(context, "ForkSession", [&] {
    mutex_.AssertHeld();
    return With(request->name(), [&](FakeSession& session) {
      mutex_.AssertHeld();
      FakeSession fork = session;
      fork.proto.set_reserved_token_count(request->reserved_token_count());
      if (request->has_token_count()) {
        for (auto& layer : fork.layers) layer.resize(request->token_count());
      }
      *response->mutable_session() =
          ToProto(sessions_.at(Add(std::move(fork))));
      return grpc::Status::OK;
    });
  });
}

grpc::Status FakeSessionServer::TruncateSession(
    grpc::ServerContext* context, const v1::TruncateSessionRequest* request,
    v1::TruncateSessionResponse* response) {
  return Run(context, "TruncateSession", [&] {
    mutex_.AssertHeld();
    return With(request->name(), [&](FakeSession& session) {
      for (auto& layer : session.layers) {
        layer.resize(std::min<size_t>(layer.size(), request->token_count()));
      }
      *response->mutable_session() = ToProto(session);
      return grpc::Status::OK;
    });
  });
}

grpc::Status FakeSessionServer::AppendKeysValues(
    grpc::ServerContext* context, const v1::AppendKeysValuesRequest* request,
    v1::AppendKeysValuesResponse*) {
  return Run(context, "AppendKeysValues", [&] {
    mutex_.AssertHeld();
    return Append(*request, request->session(), request->value());
  });
}

grpc::Status FakeSessionServer::StreamAppendKeysValues(
    grpc::ServerContext* context,
    grpc::ServerReader<v1::StreamAppendKeysValuesRequest>* reader,
    v1::StreamAppendKeysValuesResponse* response) {
  v1::StreamAppendKeysValuesRequest message;
  std::string name;
  while (reader->Read(&message)) {
    name = message.session();
    const grpc::Status status = Run(context, "StreamAppendKeysValues", [&] {
      mutex_.AssertHeld();
      return Append(message, name, message.value());
    });
    if (!status.ok()) return status;
  }
  absl::MutexLock lock(&mutex_);
  return With(name, [&](FakeSession& session) {
    *response->mutable_session() = ToProto(session);
    return grpc::Status::OK;
  });
}

grpc::Status FakeSessionServer::AttendSession(
    grpc::ServerContext* context, const v1::AttendSessionRequest* request,
    v1::AttendSessionResponse* response) {
  return Run(context, "AttendSession", [&] {
    mutex_.AssertHeld();
    return With(request->session(), [&](FakeSession&) {
      mutex_.AssertHeld();
      response->set_output(
          Attend(request->session(), request->layer(), request->query(),
                 request->return_log_sum_exp() ? response->mutable_log_sum_exp()
                                               : nullptr));
      return grpc::Status::OK;
    });
  });
}

grpc::Status FakeSessionServer::Decode(grpc::ServerContext* context,
                                       const v1::DecodeRequest* request,
                                       v1::DecodeResponse* response) {
  return Run(context, "Decode", [&] {
    mutex_.AssertHeld();
    DecodeItems(*request, response);
    return grpc::Status::OK;
  });
}

grpc::Status FakeSessionServer::StreamDecode(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>*
        stream) {
  v1::StreamDecodeRequest message;
  while (stream->Read(&message)) {
    v1::StreamDecodeResponse response;
    response.set_tag(message.tag());
    const grpc::Status status = Run(context, "StreamDecode", [&] {
      mutex_.AssertHeld();
      DecodeItems(message, &response);
      return grpc::Status::OK;
    });
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return status;
    if (!status.ok()) *response.mutable_error() = StepErrorOf(status);
    stream->Write(response);
  }
  return grpc::Status::OK;
}

}  // namespace attention
