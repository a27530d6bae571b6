//! Locks and atomics, in one place so that a model checker can stand in for them.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What hashes keys. The model checker wants every run to be the same.
#[cfg(loom)]
pub(crate) type KeyHasher = foldhash::quality::FixedState;
#[cfg(not(loom))]
pub(crate) type KeyHasher = foldhash::quality::RandomState;

#[cfg(loom)]
use loom::sync as imp;
#[cfg(not(loom))]
use parking_lot as imp;

pub(crate) use imp::MutexGuard;

/// A mutex that knows no poison: no code of anybody else runs under our locks, so nothing is left half done.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

// === impl Mutex ===

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    #[cfg(loom)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }
}
