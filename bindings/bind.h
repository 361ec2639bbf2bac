// What module.cc puts together: one function per public header of the core.
#pragma once

#include <nanobind/nanobind.h>

namespace kvc::bindings {

void bind_block_format(nanobind::module_& m);
void bind_block_hash(nanobind::module_& m);
void bind_head_remap(nanobind::module_& m);
void bind_identity(nanobind::module_& m);
void bind_layout(nanobind::module_& m);
void bind_mooncake(nanobind::module_& m);
void bind_object_key(nanobind::module_& m);
void bind_scheduler(nanobind::module_& m);
void bind_settings(nanobind::module_& m);
void bind_stats(nanobind::module_& m);
void bind_step_plan(nanobind::module_& m);
void bind_store(nanobind::module_& m);
void bind_worker(nanobind::module_& m);

}  // namespace kvc::bindings
