// Names for clang's thread-safety attributes; nothing on other compilers.
#pragma once

#if defined(__clang__)
#define KVC_ATTRIBUTE(x) __attribute__((x))
#else
#define KVC_ATTRIBUTE(x)
#endif

#define KVC_CAPABILITY(x) KVC_ATTRIBUTE(capability(x))
#define KVC_SCOPED_CAPABILITY KVC_ATTRIBUTE(scoped_lockable)
/// On a member: read and written only while the mutex is held.
#define KVC_GUARDED_BY(x) KVC_ATTRIBUTE(guarded_by(x))
/// On a pointer member: what it points to is guarded, the pointer itself is not.
#define KVC_PT_GUARDED_BY(x) KVC_ATTRIBUTE(pt_guarded_by(x))
/// On a method: the caller holds the mutex.
#define KVC_REQUIRES(...) KVC_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// On a method: the caller must not hold the mutex.
#define KVC_EXCLUDES(...) KVC_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define KVC_ACQUIRE(...) KVC_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define KVC_RELEASE(...) KVC_ATTRIBUTE(release_capability(__VA_ARGS__))
#define KVC_ACQUIRED_AFTER(...) KVC_ATTRIBUTE(acquired_after(__VA_ARGS__))
#define KVC_NO_THREAD_SAFETY_ANALYSIS KVC_ATTRIBUTE(no_thread_safety_analysis)
