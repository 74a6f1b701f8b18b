#include "server/rpc/step_request.h"

#include <utility>

namespace attention {

StepsRequest ReadSteps(ScannedAppend message) {
  StepsRequest request;
  request.appends = true;
  const v1::StreamAppendKeysValuesRequest& metadata = *message.metadata;
  RequestedStep step = {.session = metadata.session(),
                        .layer = metadata.layer(),
                        .token_count = metadata.token_count()};
  if (metadata.has_expected_position()) {
    step.expected_position = metadata.expected_position();
  }
  request.steps.push_back(step);
  request.priority = metadata.priority();
  request.key = std::move(message.key);
  request.value = std::move(message.value);
  return request;
}

StepsRequest ReadSteps(ScannedAttend message) {
  StepsRequest request;
  request.attends = true;
  const v1::AttendSessionRequest& metadata = *message.metadata;
  RequestedStep step = {.session = metadata.session(),
                        .layer = metadata.layer(),
                        .token_count = metadata.token_count()};
  if (metadata.has_key_range()) {
    step.key_range = KeyRange{metadata.key_range().begin(),
                              metadata.key_range().end()};
  }
  request.steps.push_back(step);
  if (metadata.has_scale()) request.scale = metadata.scale();
  request.return_log_sum_exp = metadata.return_log_sum_exp();
  request.priority = metadata.priority();
  request.query = std::move(message.query);
  return request;
}

StepsRequest ReadSteps(ScannedDecode message) {
  StepsRequest request;
  request.appends = true;
  request.attends = true;
  request.has_items = true;
  const v1::StreamDecodeRequest& metadata = *message.metadata;
  request.steps.reserve(metadata.items_size());
  for (const v1::DecodeItem& item : metadata.items()) {
    RequestedStep step = {.session = item.session(),
                          .layer = item.layer(),
                          .token_count = item.token_count()};
    if (item.has_expected_position()) {
      step.expected_position = item.expected_position();
    }
    request.steps.push_back(step);
  }
  if (metadata.has_scale()) request.scale = metadata.scale();
  request.return_log_sum_exp = metadata.return_log_sum_exp();
  request.priority = metadata.priority();
  request.query = std::move(message.query);
  request.key = std::move(message.key);
  request.value = std::move(message.value);
  return request;
}

}  // namespace attention
