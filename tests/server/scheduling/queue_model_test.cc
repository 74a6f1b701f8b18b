// The same random operations on the queues and on a model of plain vectors that
// is slow and obviously right.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/scheduling/test_queues.h"

namespace attention {
namespace {

class Model {
 public:
  struct Item {
    WorkId id;
    WorkSpec spec;
  };

  Model(const Scheduler::Options& options, const CostModel& cost_model)
      : options_(options), cost_model_(cost_model) {}

  void Push(WorkId id, const WorkSpec& spec) {
    Tenant& tenant = Find(tenants_, spec.tenant);
    std::vector<Item>& items = Find(tenant.line, NameOf(spec)).line;
    items.push_back({id, spec});
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::tuple(-a.spec.priority, a.spec.deadline, a.id) <
             std::tuple(-b.spec.priority, b.spec.deadline, b.id);
    });
  }

  bool Remove(WorkId id) {
    for (Tenant& tenant : tenants_) {
      for (Flow& flow : tenant.line) {
        const size_t erased = std::erase_if(
            flow.line, [id](const Item& item) { return item.id == id; });
        if (erased == 0) continue;
        DropUnused(tenant.line);
        DropUnused(tenants_);
        ForgetIfEmpty();
        return true;
      }
    }
    return false;
  }

  std::vector<int64_t> TakeBatch(int device) {
    const bool none = std::none_of(
        tenants_.begin(), tenants_.end(),
        [device](const Tenant& tenant) { return IsReady(tenant, device); });
    if (none) return {};
    Tenant& tenant = Next(tenants_, device);
    Flow& leader = Next(tenant.line, device);
    struct Share {
      Tenant* tenant;
      Flow* flow;
      bool owes;
      absl::Duration time;
      int works;
    };
    std::vector<Share> shares = {{&tenant, &leader, false, {}, 0}};
    for (Tenant& other : tenants_) {
      for (Flow& flow : other.line) {
        if (&other == &tenant || flow.name != leader.name) continue;
        shares.push_back(
            {&other, &flow, other.owed > absl::ZeroDuration(), {}, 0});
      }
    }
    std::vector<int64_t> batch;
    size_t bytes = 0;
    int64_t tokens = 0;
    for (;;) {
      Share* next = nullptr;
      for (Share& share : shares) {
        if (share.flow == nullptr || share.flow->line.empty()) continue;
        if (next == nullptr ||
            std::tuple(share.owes, share.time, share.works) <
                std::tuple(next->owes, next->time, next->works)) {
          next = &share;
        }
      }
      if (next == nullptr || static_cast<int>(batch.size()) ==
                                 options_.max_batch_requests) {
        break;
      }
      const WorkSpec spec = next->flow->line.front().spec;
      if (!batch.empty() && (bytes + spec.bytes > options_.max_batch_bytes ||
                             tokens + spec.tokens > options_.max_batch_tokens)) {
        next->flow = nullptr;  // no more of it: its next work keeps its place
        continue;
      }
      bytes += spec.bytes;
      tokens += spec.tokens;
      batch.push_back(spec.tokens);
      next->time += cost_model_.Added(0, 0, CostOf(*MakeWork(spec)));
      ++next->works;
      next->flow->line.erase(next->flow->line.begin());
      charged_[{next->tenant->name, leader.name}] = {next->time, next->works};
    }
    for (const auto& [names, share] : charged_) {
      const absl::Duration charge =
          share.first + cost_model_.Launch(0, 0) * share.second /
                            static_cast<int64_t>(batch.size());
      Tenant& payer = Find(tenants_, names.first);
      payer.owed += charge;
      Find(payer.line, names.second).owed += charge;
    }
    charged_.clear();
    ForgetIfEmpty();
    return batch;
  }

  std::vector<WorkId> Expired(absl::Time now) const {
    std::vector<WorkId> ids;
    for (const Tenant& tenant : tenants_) {
      for (const Flow& flow : tenant.line) {
        for (const Item& item : flow.line) {
          if (item.spec.deadline <= now) ids.push_back(item.id);
        }
      }
    }
    return ids;
  }

  size_t size() const {
    size_t size = 0;
    for (const Tenant& tenant : tenants_) size += Count(tenant);
    return size;
  }

 private:
  template <typename Name, typename Line>
  struct Member {
    Name name;
    Line line;
    absl::Duration owed;
  };
  using FlowName = std::pair<int, int>;  // configuration, required device
  using Flow = Member<FlowName, std::vector<Item>>;
  using Tenant = Member<std::string, std::deque<Flow>>;

  static FlowName NameOf(const WorkSpec& spec) {
    return {spec.config, spec.required_device};
  }

  static bool IsReady(const Flow& flow, int device) {
    const int required = flow.name.second;
    return Count(flow) > 0 && (required == kAnyDevice || required == device);
  }
  static bool IsReady(const Tenant& tenant, int device) {
    return std::any_of(
        tenant.line.begin(), tenant.line.end(),
        [device](const Flow& flow) { return IsReady(flow, device); });
  }

  static size_t Count(const Flow& flow) { return flow.line.size(); }
  static size_t Count(const Tenant& tenant) {
    size_t count = 0;
    for (const Flow& flow : tenant.line) count += Count(flow);
    return count;
  }

  template <typename M, typename Name>
  static M& Find(std::deque<M>& line, const Name& name) {
    for (M& member : line) {
      if (member.name == name) return member;
    }
    line.push_back({name, {}, {}});
    return line.back();
  }

  template <typename M>
  static void DropUnused(std::deque<M>& line) {
    std::erase_if(line, [](const M& m) {
      return Count(m) == 0 && m.owed <= absl::ZeroDuration();
    });
  }

  // One visit after the other. Those with work that is not for the device are
  // left where they are. The result stands at the back.
  template <typename M>
  static M& Next(std::deque<M>& line, int device) {
    for (;;) {
      const auto visited = std::find_if(
          line.begin(), line.end(),
          [device](const M& m) { return Count(m) == 0 || IsReady(m, device); });
      M member = *visited;
      line.erase(visited);
      member.owed = std::max(member.owed - kTurnQuantum, -kTurnQuantum);
      const bool paid = member.owed <= absl::ZeroDuration();
      if (paid && Count(member) == 0) continue;
      line.push_back(member);
      if (paid) return line.back();
    }
  }

  void ForgetIfEmpty() {
    if (size() == 0) tenants_.clear();
  }

  const Scheduler::Options options_;
  const CostModel& cost_model_;
  std::deque<Tenant> tenants_;
  std::map<std::pair<std::string, FlowName>, std::pair<absl::Duration, int>>
      charged_;
};

TEST(QueueModelTest, TheQueuesAgreeOverRandomOperations) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&random](uint64_t bound) { return random() % bound; };
    const Scheduler::Options options = {
        .max_batch_requests = 1 + static_cast<int>(below(6)),
        .max_batch_bytes = 1'000'000,
        .max_batch_tokens = 40};
    TestQueues queues(options);
    Model model(options, queues.model);
    absl::Time now = kStart;
    WorkId last_id = 0;
    for (int step = 0; step < 1000; ++step) {
      switch (below(4)) {
        case 0:
        case 1: {
          const WorkSpec spec = {
              .config = 1 + static_cast<int>(below(4)),
              .bytes = below(1'200'000),
              .tokens = static_cast<int64_t>(below(45)),
              .deadline = below(3) == 0 ? absl::InfiniteFuture()
                                        : now + absl::Seconds(below(30)),
              .tenant = absl::StrCat(below(4)),
              .priority = static_cast<int32_t>(below(3)),
              .required_device =
                  static_cast<int>(below(TestDevices::kCount + 1)) - 1};
          last_id = Push(queues, spec, now);
          model.Push(last_id, spec);
          break;
        }
        case 2: {
          const WorkId id = 1 + below(last_id + 1);
          EXPECT_EQ(queues.Remove(id) != nullptr, model.Remove(id));
          break;
        }
        case 3: {
          now += absl::Seconds(below(3));
          std::vector<WorkId> expired = model.Expired(now);
          ASSERT_EQ(queues.TakeExpired(now).size(), expired.size());
          for (WorkId id : expired) EXPECT_TRUE(model.Remove(id));
          const size_t device = below(TestDevices::kCount);
          ASSERT_EQ(Take(queues, now, false, device),
                    model.TakeBatch(static_cast<int>(device)));
          break;
        }
      }
      ASSERT_EQ(queues.size(), model.size());
    }
  }
}

}  // namespace
}  // namespace attention
