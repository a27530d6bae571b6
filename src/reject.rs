//! What becomes of a request that its slot does not let start: an error, or a response.

use http::Response;

use crate::error::{BoxError, SlotError};

/// Says what a refused request gets, and what type errors have.
pub trait Reject<B, E> {
    /// The error type of the service.
    type Error;

    /// Turns the slot's refusal into an outcome.
    ///
    /// # Errors
    ///
    /// The error that the service's caller shall see.
    fn refuse(&self, error: SlotError) -> Result<Response<B>, Self::Error>;

    /// Passes on an error of the inner service.
    fn inner(&self, error: E) -> Self::Error;
}

/// The default: a refusal is a [`SlotError`] inside a [`BoxError`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Fail;

/// Refusals become responses, and errors keep the inner service's type; made by
/// [`SlotLayer::reject_with`](crate::SlotLayer::reject_with).
#[derive(Clone, Copy, Debug)]
pub struct RejectWith<F>(pub(crate) F);

// === impl Fail ===

impl<B, E: Into<BoxError>> Reject<B, E> for Fail {
    type Error = BoxError;

    fn refuse(&self, error: SlotError) -> Result<Response<B>, BoxError> {
        Err(Box::new(error))
    }

    fn inner(&self, error: E) -> BoxError {
        error.into()
    }
}

// === impl RejectWith ===

impl<B, E, F: Fn(SlotError) -> Response<B>> Reject<B, E> for RejectWith<F> {
    type Error = E;

    fn refuse(&self, error: SlotError) -> Result<Response<B>, E> {
        Ok((self.0)(error))
    }

    fn inner(&self, error: E) -> E {
        error
    }
}
