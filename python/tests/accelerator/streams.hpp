// Streams, events and the clock of the accelerator: everything that runs behind the host.
#pragma once

#include <Python.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_set>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Stream.h>

namespace accelerator {

inline int64_t now_ns() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1'000'000'000LL + at.tv_nsec;
}

// Sleeps until then. Never spins: all ranks of a job may share two cores.
inline void sleep_until_ns(int64_t at_ns) {
  timespec at{at_ns / 1'000'000'000LL, at_ns % 1'000'000'000LL};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

// The same string for the same text, for good.
inline const std::string* intern(const std::string& text) {
  static auto& all = *new std::unordered_set<std::string>;
  static auto& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  return &*all.insert(text).first;
}

// Lets other Python threads run while this one waits for the device.
class Released {
 public:
  Released() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~Released() {
    if (state_) PyEval_RestoreThread(state_);
  }
  Released(const Released&) = delete;

 private:
  PyThreadState* state_;
};

// What the process can be told, and what it tells, about its device.
struct Device {
  std::atomic<size_t> queue_limit{1024};
  std::atomic<bool> queries_fail{false};
  std::atomic<bool> collectives_stop{false};
  std::atomic<bool> stopped{false};
  std::atomic<bool> ending{false};
  std::atomic<bool> capturing{false};
  std::atomic<int> violations{0};

  std::mutex mutex;
  std::string failure;
  // What ran: on which stream, what, from when to when.
  std::vector<std::tuple<int64_t, const std::string*, int64_t, int64_t>> log;
  static constexpr size_t LOG_LIMIT = 1 << 20;

  void ran(int64_t stream, const std::string* label, int64_t begin_ns, int64_t end_ns) {
    std::lock_guard lock(mutex);
    if (log.size() < LOG_LIMIT) log.emplace_back(stream, label, begin_ns, end_ns);
  }

  void fail(const std::string& why) {
    std::lock_guard lock(mutex);
    if (failure.empty()) failure = why;
  }

  bool failed() {
    std::lock_guard lock(mutex);
    return !failure.empty();
  }

  // As on a GPU, what fails on the device is told where the host next waits for it.
  void check() {
    std::lock_guard lock(mutex);
    if (!failure.empty()) throw std::runtime_error("sim: the device failed: " + failure);
  }
};

// Never destroyed: streams run until the process ends.
inline Device& device() {
  static auto& one = *new Device;
  return one;
}

// A point in the order of a stream, and when the stream got there.
class Mark {
 public:
  void reach() {
    std::lock_guard lock(mutex_);
    at_ns_ = now_ns();
    reached_.notify_all();
  }

  bool reached() {
    std::lock_guard lock(mutex_);
    return at_ns_ != 0;
  }

  int64_t wait() {
    std::unique_lock lock(mutex_);
    reached_.wait(lock, [&] { return at_ns_ != 0; });
    return at_ns_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  int64_t at_ns_ = 0;
};

using MarkPtr = std::shared_ptr<Mark>;

// Never returns.
[[noreturn]] inline void hang() {
  while (true) sleep_until_ns(now_ns() + 3'600'000'000'000LL);
}

// A stream: a thread that works off what is launched, in order.
class Stream {
 public:
  Stream(int64_t id, bool computes) : id_(id), computes_(computes) {
    std::thread([this] { work(); }).detach();
  }

  int64_t id() const { return id_; }

  // Launches and goes on; waits only while the queue is full.
  void launch(const std::string* label, std::function<void()> run) {
    std::unique_lock lock(mutex_);
    while (queue_.size() >= device().queue_limit) {
      lock.unlock();
      {
        // The interpreter is taken back without the lock, for its holder may want the lock.
        Released released;
        std::unique_lock waiting(mutex_);
        room_.wait(waiting, [&] { return queue_.size() < device().queue_limit; });
      }
      lock.lock();
    }
    queue_.push_back({label, std::move(run)});
    launched_.notify_one();
  }

  MarkPtr record() {
    static const auto* label = intern("record");
    auto mark = std::make_shared<Mark>();
    launch(label, [mark] { mark->reach(); });
    return mark;
  }

  // What is launched from now on waits until the mark is reached.
  void wait(const MarkPtr& mark) {
    static const auto* label = intern("wait");
    launch(label, [mark] { mark->wait(); });
  }

  // The host waits for all that was launched.
  void synchronize() {
    Released released;
    record()->wait();
    device().check();
  }

  bool idle() {
    std::lock_guard lock(mutex_);
    return queue_.empty() && !busy_;
  }

  bool busy() {
    std::lock_guard lock(mutex_);
    return busy_;
  }

 private:
  struct Kernel {
    const std::string* label;
    std::function<void()> run;
  };

  void work() {
    pthread_setname_np(pthread_self(), ("sim:" + std::to_string(id_)).c_str());
    prctl(PR_SET_TIMERSLACK, 1);
    // Kernels do not wait for the host's processors. Where that is not allowed, they do. Not so
    // collectives: gloo may yield to its own threads until they are done, and they would never be.
    const sched_param soon{1};
    if (computes_) pthread_setschedparam(pthread_self(), SCHED_RR, &soon);
    // The host has seen to autograd when it launched.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    while (true) {
      Kernel kernel = next();
      // Nothing begins while the process is taken down.
      if (device().ending) {
        rest();
        hang();
      }
      const auto begin_ns = now_ns();
      try {
        kernel.run();
      } catch (const std::exception& error) {
        device().fail(*kernel.label + ": " + error.what());
      }
      device().ran(id_, kernel.label, begin_ns, now_ns());
    }
  }

  void rest() {
    std::lock_guard lock(mutex_);
    busy_ = false;
  }

  Kernel next() {
    std::unique_lock lock(mutex_);
    busy_ = false;
    launched_.wait(lock, [&] { return !queue_.empty(); });
    Kernel kernel = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    room_.notify_all();
    return kernel;
  }

  const int64_t id_;
  const bool computes_;
  std::mutex mutex_;
  std::condition_variable launched_, room_;
  std::deque<Kernel> queue_;
  bool busy_ = false;
};

// All streams by their ids; the default stream is 0.
class Streams {
 public:
  Stream& get(int64_t id) {
    std::lock_guard lock(mutex_);
    while (all_.size() <= static_cast<size_t>(id)) add(true);
    return *all_[id];
  }

  // A new one: for kernels, or for collectives.
  Stream& create(bool computes) {
    std::lock_guard lock(mutex_);
    if (all_.empty()) add(true);
    return add(computes);
  }

  void synchronize() {
    for (auto* stream : snapshot()) stream->synchronize();
  }

  // The process ends: what is launched is dropped, and what runs has a moment to finish.
  void end() {
    device().ending = true;
    const auto until_ns = now_ns() + 1'000'000'000LL;
    for (auto* stream : snapshot()) {
      while (stream->busy() && !device().stopped && now_ns() < until_ns) {
        sleep_until_ns(now_ns() + 1'000'000LL);
      }
    }
  }

 private:
  Stream& add(bool computes) {
    all_.push_back(new Stream(static_cast<int64_t>(all_.size()), computes));
    return *all_.back();
  }

  std::vector<Stream*> snapshot() {
    std::lock_guard lock(mutex_);
    return all_;
  }

  std::mutex mutex_;
  std::vector<Stream*> all_;
};

inline Streams& streams() {
  static auto& all = *new Streams;
  return all;
}

// Each thread of the host has a current stream of its own.
inline int64_t& current_id() {
  static thread_local int64_t id = 0;
  return id;
}

inline Stream& current() {
  return streams().get(current_id());
}

// A kernel that takes that long.
inline void spend(const std::string& label, double seconds) {
  current().launch(intern(label), [seconds] {
    sleep_until_ns(now_ns() + static_cast<int64_t>(seconds * 1e9));
  });
}

// A kernel that never ends.
inline void stop() {
  device().stopped = true;
  current().launch(intern("stop"), [] { hang(); });
}

} // namespace accelerator
