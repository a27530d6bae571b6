//! Responders: ready-made answers for requests that their slot did not let start, to be handed to
//! [`SlotLayer::reject_with`](crate::SlotLayer::reject_with).
//!
//! The rule people get wrong: `Retry-After` counts whole seconds, so a wait of 200 ms that is rounded down asks the
//! client to come back at once. Here it is rounded up and at least 1.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};

use crate::error::{SlotError, SlotErrorKind, WaitReason};

/// Answers 429 where the caller's own slot is the reason, and 503 where it is not; with `Retry-After`.
///
/// For slots that belong to a caller: one per tenant, per token, per peer address.
///
/// | refusal | status |
/// |---|---|
/// | [`QueueFull`], [`WaitTimeout`], waiting for the slot's concurrency or pace | 429 |
/// | the same, waiting for the [cap over all slots](crate::SlotConfigBuilder::total_concurrency) | 503 |
/// | [`TooManySlots`], [`Closed`], [`NoKey`] | 503 |
///
/// `Retry-After` is [`SlotError::retry_after`] in whole seconds, rounded up and at least 1; 1 where it is not
/// known. The body is empty; put another one into the response if callers shall read more:
///
/// ```
/// use http::Response;
/// use tower_slot::{SlotConfig, SlotError, SlotLayer, too_many_requests};
///
/// let layer = SlotLayer::new(SlotConfig::default()).reject_with(|error: SlotError| -> Response<String> {
///     let text = error.to_string();
///     too_many_requests::<()>(error).map(|()| text)
/// });
/// ```
///
/// [`QueueFull`]: SlotErrorKind::QueueFull
/// [`WaitTimeout`]: SlotErrorKind::WaitTimeout
/// [`TooManySlots`]: SlotErrorKind::TooManySlots
/// [`Closed`]: SlotErrorKind::Closed
/// [`NoKey`]: SlotErrorKind::NoKey
#[must_use]
pub fn too_many_requests<B: Default>(error: SlotError) -> Response<B> {
    let is_own = match error.kind() {
        SlotErrorKind::QueueFull | SlotErrorKind::WaitTimeout => error.reason() != Some(WaitReason::Total),
        SlotErrorKind::TooManySlots | SlotErrorKind::Closed | SlotErrorKind::NoKey => false,
    };
    if is_own { respond(StatusCode::TOO_MANY_REQUESTS, &error) } else { service_unavailable(error) }
}

/// Answers 503 whatever the reason; with `Retry-After`, as [`too_many_requests`] does.
///
/// For slots that callers share, so that none of them has done too much: one per host, per route, one for all.
#[must_use]
pub fn service_unavailable<B: Default>(error: SlotError) -> Response<B> {
    respond(StatusCode::SERVICE_UNAVAILABLE, &error)
}

fn respond<B: Default>(status: StatusCode, error: &SlotError) -> Response<B> {
    let mut response = Response::new(B::default());
    *response.status_mut() = status;
    let seconds = seconds(error.retry_after().unwrap_or_default());
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Whole seconds, rounded up, at least 1.
fn seconds(time: Duration) -> u64 {
    let begun = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(begun).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_whole_rounded_up_and_at_least_one() {
        let cases = [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(999), 1),
            (Duration::from_secs(1), 1),
            (Duration::from_nanos(1_000_000_001), 2),
            (Duration::from_millis(2_500), 3),
            (Duration::MAX, u64::MAX),
        ];
        for (time, expected) in cases {
            assert_eq!(seconds(time), expected, "{time:?}");
        }
    }
}
