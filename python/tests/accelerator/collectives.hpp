// Collectives of the accelerator: issued and not waited for, as NCCL's are.
#pragma once

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "operators.hpp"

namespace accelerator {

using Tensors = std::vector<at::Tensor>;

inline Tensors on_cpu_all(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(on_cpu(tensor));
  return all;
}

inline std::vector<Tensors> on_cpu_all(const std::vector<Tensors>& lists) {
  std::vector<Tensors> all;
  for (const auto& tensors : lists) all.push_back(on_cpu_all(tensors));
  return all;
}

// A collective under way.
class Work final : public c10d::Work {
 public:
  Work(int rank, c10d::OpType type, MarkPtr end, Tensors outputs, bool host_waits)
      : c10d::Work(rank, type), end_(std::move(end)), outputs_(std::move(outputs)),
        host_waits_(host_waits) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{SIM});
  }

  // Whoever waits for the future waits on its stream for what that stream has been told by now.
  void complete(Stream& stream) {
    c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, SIM, stream.id()));
    future_->markCompleted(c10::IValue(outputs_));
  }

  bool isCompleted() override { return end_->reached(); }
  bool isSuccess() const override { return !device().failed(); }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void synchronize() override { current().wait(end_); }

  // The current stream waits; the host goes on.
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (host_waits_) {
      Released released;
      end_->wait();
      device().check();
    }
    return true;
  }

 private:
  MarkPtr end_;
  Tensors outputs_;
  bool host_waits_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A process group of the device. gloo does the work, on the stream of this group.
class Collectives final : public c10d::Backend {
 public:
  using Issued = c10::intrusive_ptr<c10d::Work>;

  explicit Collectives(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)),
        stream_(streams().create(false)) {}

  ~Collectives() override {
    drain();
    // A stream that stopped may be inside it.
    if (device().stopped) gloo_.release();
  }

  const std::string getBackendName() const override { return "sim"; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds) override {}
  uint64_t getSequenceNumberForGroup() override { return issued_; }
  void shutdown() override { drain(); }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("sim");
  }

  Issued allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto [sum, finish] = summed(options, on_cpu_all(tensors));
    return issue(c10d::OpType::ALLREDUCE, tensors,
        [this, sum = sum, on_cpu = on_cpu_all(tensors)]() mutable {
          return gloo_->allreduce(on_cpu, sum);
        }, finish);
  }

  Issued allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    startCoalescing();
    for (auto& tensor : tensors) {
      Tensors one{tensor};
      allreduce(one, options);
    }
    return endCoalescing();
  }

  Issued reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto [sum, finish] = summed(options, on_cpu_all(tensors));
    return issue(c10d::OpType::REDUCE, tensors,
        [this, sum = sum, on_cpu = on_cpu_all(tensors)]() mutable {
          return gloo_->reduce(on_cpu, sum);
        }, finish);
  }

  Issued broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return issue(c10d::OpType::BROADCAST, tensors,
        [this, options, on_cpu = on_cpu_all(tensors)]() mutable {
          return gloo_->broadcast(on_cpu, options);
        });
  }

  Issued allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::AllgatherOptions& options) override {
    return issue(c10d::OpType::ALLGATHER, outputs.at(0),
        [this, options, to = on_cpu_all(outputs), from = on_cpu_all(inputs)]() mutable {
          return gloo_->allgather(to, from, options);
        });
  }

  Issued all_gather_single(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& options) override {
    return issue(c10d::OpType::_ALLGATHER_BASE, {output},
        [this, options, to = on_cpu(output), from = on_cpu(input)]() mutable {
          return gloo_->all_gather_single(to, from, options);
        });
  }

  Issued all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& options) override {
    startCoalescing();
    for (size_t at = 0; at < outputs.size(); ++at) {
      all_gather_single(outputs[at], inputs[at], options);
    }
    return endCoalescing();
  }

  Issued gather(std::vector<Tensors>& outputs, Tensors& inputs,
                const c10d::GatherOptions& options) override {
    return issue(c10d::OpType::GATHER, outputs.empty() ? Tensors() : outputs[0],
        [this, options, to = on_cpu_all(outputs), from = on_cpu_all(inputs)]() mutable {
          return gloo_->gather(to, from, options);
        });
  }

  Issued scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                 const c10d::ScatterOptions& options) override {
    return issue(c10d::OpType::SCATTER, outputs,
        [this, options, to = on_cpu_all(outputs), from = on_cpu_all(inputs)]() mutable {
          return gloo_->scatter(to, from, options);
        });
  }

  Issued reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                        const c10d::ReduceScatterOptions& options) override {
    auto [sum, finish] = summed(options, on_cpu_all(outputs));
    return issue(c10d::OpType::REDUCE_SCATTER, outputs,
        [this, sum = sum, to = on_cpu_all(outputs), from = on_cpu_all(inputs)]() mutable {
          return gloo_->reduce_scatter(to, from, sum);
        }, finish);
  }

  Issued reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    auto [sum, finish] = summed(options, on_cpu_all(Tensors{output}));
    return issue(c10d::OpType::_REDUCE_SCATTER_BASE, {output},
        [this, sum = sum, to = on_cpu(output), from = on_cpu(input)]() mutable {
          return gloo_->reduce_scatter_single(to, from, sum);
        }, finish);
  }

  Issued reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                         const c10d::ReduceScatterOptions& options) override {
    startCoalescing();
    for (size_t at = 0; at < outputs.size(); ++at) {
      reduce_scatter_single(outputs[at], inputs[at], options);
    }
    return endCoalescing();
  }

  Issued all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to_counts,
                           std::vector<int64_t>& from_counts,
                           const c10d::AllToAllOptions& options) override {
    return issue(c10d::OpType::ALLTOALL_BASE, {output},
        [this, options, to_counts, from_counts, to = on_cpu(output),
         from = on_cpu(input)]() mutable {
          return gloo_->all_to_all_single(to, from, to_counts, from_counts, options);
        });
  }

  Issued send(Tensors& tensors, int peer, int tag) override {
    return issue(c10d::OpType::SEND, tensors,
        [this, peer, tag, on_cpu = on_cpu_all(tensors)]() mutable {
          return gloo_->send(on_cpu, peer, tag);
        }, {}, peer);
  }

  Issued recv(Tensors& tensors, int peer, int tag) override {
    return issue(c10d::OpType::RECV, tensors,
        [this, peer, tag, on_cpu = on_cpu_all(tensors)]() mutable {
          return gloo_->recv(on_cpu, peer, tag);
        }, {}, peer);
  }

  // The host waits for a barrier, as it does for NCCL's.
  Issued barrier(const c10d::BarrierOptions& options) override {
    c10d::BarrierOptions plain;
    plain.timeout = options.timeout;
    return issue(c10d::OpType::BARRIER, {}, [this, plain] { return gloo_->barrier(plain); });
  }

  // What is issued until the end begins and ends as one.
  void startCoalescing() override { group_ = std::make_unique<Group>(); }

  Issued endCoalescing() override {
    const auto group = std::move(group_);
    TORCH_CHECK(group, "sim: nothing to coalesce");
    return run(c10d::OpType::COALESCED, std::move(*group), stream_);
  }

 private:
  using Begin = std::function<Issued()>;
  using Finish = std::function<void()>;

  // What runs as one.
  struct Group {
    std::vector<std::pair<Begin, Finish>> parts;
    Tensors outputs;
    MarkPtr end = std::make_shared<Mark>();
  };

  Issued issue(c10d::OpType type, const Tensors& outputs, Begin begin, Finish finish = {},
               int peer = -1) {
    ++issued_;
    if (group_) {
      group_->parts.emplace_back(std::move(begin), std::move(finish));
      group_->outputs.insert(group_->outputs.end(), outputs.begin(), outputs.end());
      return c10::make_intrusive<Work>(rank_, type, group_->end, outputs, false);
    }
    Group alone;
    alone.parts.emplace_back(std::move(begin), std::move(finish));
    alone.outputs = outputs;
    return run(type, std::move(alone), peer < 0 ? stream_ : stream_to(peer));
  }

  Issued run(c10d::OpType type, Group group, Stream& stream) {
    const bool host_waits = type == c10d::OpType::BARRIER;
    auto work = c10::make_intrusive<Work>(rank_, type, group.end, group.outputs, host_waits);
    stream.wait(current().record());
    const bool stops = device().collectives_stop;
    if (stops) device().stopped = true;
    stream.launch(intern(name(type)), [this, stops, parts = std::move(group.parts)] {
      if (stops) hang();
      std::vector<Issued> begun;
      {
        std::lock_guard lock(mutex_);
        for (const auto& part : parts) begun.push_back(part.first());
      }
      for (const auto& one : begun) one->wait();
      for (const auto& part : parts) {
        if (part.second) part.second();
      }
    });
    stream.launch(intern("record"), [end = group.end] { end->reach(); });
    work->complete(stream);
    return work;
  }

  // gloo has no mean: it sums, and the sum is divided.
  template <class Options>
  std::pair<Options, Finish> summed(const Options& options, Tensors outputs) {
    Options sum = options;
    if (options.reduceOp != c10d::ReduceOp::AVG) return {sum, {}};
    sum.reduceOp = c10d::ReduceOp::SUM;
    return {sum, [outputs, size = size_] {
      for (const auto& output : outputs) output.div_(size);
    }};
  }

  // As with NCCL, messages of different pairs of ranks do not wait for one another.
  Stream& stream_to(int peer) {
    const auto known = pairs_.find(peer);
    if (known != pairs_.end()) return *known->second;
    return *pairs_.emplace(peer, &streams().create(false)).first->second;
  }

  static std::string name(c10d::OpType type) {
    return type == c10d::OpType::COALESCED ? "coalesced" : c10d::opTypeToString(type);
  }

  void drain() {
    if (device().stopped) return;
    Released released;
    stream_.record()->wait();
    for (const auto& pair : pairs_) pair.second->record()->wait();
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  Stream& stream_;
  std::map<int, Stream*> pairs_;
  std::unique_ptr<Group> group_;
  std::atomic<uint64_t> issued_{0};
  std::mutex mutex_;
};

} // namespace accelerator
