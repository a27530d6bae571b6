//! Code that is not ours, run while a permit is held: should it panic, the permit goes as it unwinds.
//!
//! What is held stays where it is, so that the usual way moves nothing.

use crate::slot::Outcome;

/// Something that keeps a permit.
pub(crate) trait End {
    /// Gives the permit back.
    fn end(self, outcome: Outcome);
}

/// Gives back what is `held`, if anything is.
#[inline]
pub(crate) fn end<H: End>(held: &mut Option<H>, outcome: Outcome) {
    if let Some(held) = held.take() {
        held.end(outcome);
    }
}

/// Runs `f`; if it panics, what is `held` is given back as a failure.
#[inline]
pub(crate) fn guard<H: End, T>(held: &mut Option<H>, f: impl FnOnce() -> T) -> T {
    let unwinding = Unwinding(held);
    let value = f();
    std::mem::forget(unwinding);
    value
}

struct Unwinding<'a, H: End>(&'a mut Option<H>);

impl<H: End> Drop for Unwinding<'_, H> {
    #[cold]
    fn drop(&mut self) {
        end(self.0, Outcome::Failed);
    }
}
