//! What the page may change: a pause, its end, and a slot's concurrency.

use std::time::Duration;

use axum::{
    Json,
    extract::{State, rejection::JsonRejection},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::Deserialize;
use tokio::time::Instant;
use tower_slot::{ConfigError, SlotLimits, Slots};

/// A day: the longest pause.
const LONGEST: f64 = 86_400.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    slot: String,
    seconds: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resume {
    slot: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Concurrency {
    slot: String,
    /// `null` is unlimited; it has to be said.
    #[serde(deserialize_with = "Option::deserialize")]
    concurrency: Option<usize>,
}

/// What was wrong with a request, for the person at the page.
pub(crate) struct Refusal(StatusCode, String);

/// What a request asks for, or why it could not be read.
type Asked<T> = Result<Json<T>, JsonRejection>;

pub(crate) async fn pause(State(slots): State<Slots>, asked: Asked<Pause>) -> Result<StatusCode, Refusal> {
    let Json(Pause { slot, seconds }) = asked?;
    known(&slots, &slot)?;
    if !(seconds > 0.0 && seconds <= LONGEST) {
        return Err(Refusal::bad(format!("seconds: not above 0 and up to {LONGEST}")));
    }
    slots.pause(slot, Instant::now() + Duration::from_secs_f64(seconds));
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn resume(State(slots): State<Slots>, asked: Asked<Resume>) -> Result<StatusCode, Refusal> {
    let Json(Resume { slot }) = asked?;
    known(&slots, &slot)?;
    slots.resume(slot.as_str());
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn concurrency(
    State(slots): State<Slots>,
    asked: Asked<Concurrency>,
) -> Result<StatusCode, Refusal> {
    let Json(Concurrency { slot, concurrency }) = asked?;
    known(&slots, &slot)?;
    let limits = match concurrency {
        Some(n) => SlotLimits::new().concurrency(n),
        None => SlotLimits::new().unlimited_concurrency(),
    };
    slots.configure(slot, limits)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses a name that is none of a slot's: settings are kept for slots to come, and this is no place to fill memory.
fn known(slots: &Slots, slot: &str) -> Result<(), Refusal> {
    match slots.stats(slot) {
        Some(_) => Ok(()),
        None => Err(Refusal(StatusCode::NOT_FOUND, format!("there is no slot {slot:?}"))),
    }
}

// === impl Refusal ===

impl Refusal {
    fn bad(why: String) -> Self {
        Self(StatusCode::UNPROCESSABLE_ENTITY, why)
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        Self(rejection.status(), rejection.body_text())
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        Self::bad(error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}
