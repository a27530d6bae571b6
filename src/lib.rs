//! A tower middleware for HTTP that sends every request through a named *slot* and keeps its place there until
//! the response body has ended.

mod config;
mod error;
mod extract;
mod hold;
mod jitter;
mod key;
mod layer;
mod limits;
mod reject;
mod service;
mod slot;
mod timings;
mod upgrade;

pub mod body;
pub mod future;

pub use self::config::{ConfigError, SlotConfig, SlotConfigBuilder};
pub use self::error::{BoxError, SlotError, SlotErrorKind, WaitReason};
pub use self::extract::{ExtensionOrHost, KeyExtractor};
pub use self::hold::Hold;
pub use self::jitter::Jitter;
pub use self::key::{KeyRef, SlotKey};
pub use self::layer::SlotLayer;
pub use self::limits::{Limits, SlotLimits};
pub use self::reject::{Fail, Reject, RejectWith};
pub use self::service::SlotService;
pub use self::slot::{
    Acquire, Counts, Drained, Phases, Recycled, SlotPermit, SlotStats, Slots, Snapshot, Sweeper, TotalStats,
};
pub use self::timings::SlotTimings;
pub use self::upgrade::UpgradePermit;
