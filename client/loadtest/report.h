// The report of a run, for people, programs and spreadsheets.
//
// Times are in milliseconds in the text and in seconds in JSON and CSV. The
// fields are listed in client/loadtest/README.md.
#ifndef ATTENTION_CLIENT_LOADTEST_REPORT_H_
#define ATTENTION_CLIENT_LOADTEST_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "attention/v1/attention.pb.h"
#include "client/loadtest/decode_plan.h"
#include "client/loadtest/load_runner.h"
#include "client/loadtest/load_stats.h"
#include "client/loadtest/shape_mix.h"

namespace attention::loadtest {

struct DecodeReport {
  DecodePlan plan;
  DecodeLoadResult result;  // without `calls`
};

// What was run, and what came of it.
struct LoadReport {
  LoadPlan plan;
  ShapeMix mix;
  std::vector<std::string> targets;
  std::vector<v1::GetServerInfoResponse> servers;  // as targets
  LoadResult result;
  // Of a decoding load; `mix` then has the shape of its tapes, and `result` its
  // calls.
  std::optional<DecodeReport> decode;
};

// One object, ending in a newline.
std::string ToJson(const LoadReport& report);

// A header, a line "total", and a line for each shape of the mix.
std::string ToCsv(const LoadReport& report);

std::string ToText(const LoadReport& report);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_REPORT_H_
