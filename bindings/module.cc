#include <nanobind/nanobind.h>

#include "bindings/bind.h"

NB_MODULE(_native, m) {
  m.doc() = "The core of the connector. Internal: names may change in any version.";
  kvc::bindings::bind_identity(m);
  kvc::bindings::bind_block_hash(m);
  kvc::bindings::bind_object_key(m);
  kvc::bindings::bind_block_format(m);
  kvc::bindings::bind_layout(m);
  kvc::bindings::bind_head_remap(m);
  kvc::bindings::bind_step_plan(m);
  kvc::bindings::bind_settings(m);
  kvc::bindings::bind_store(m);
  kvc::bindings::bind_mooncake(m);
  kvc::bindings::bind_stats(m);
  kvc::bindings::bind_scheduler(m);
  kvc::bindings::bind_worker(m);
}
