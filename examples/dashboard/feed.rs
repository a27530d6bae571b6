//! What the page is fed with: a snapshot twice a second, and at first how long the queues have been.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, StreamExt, stream};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tower_slot::{Slots, Snapshot};

/// From one snapshot to the next; a length of each queue is kept as often.
const TICK: Duration = Duration::from_millis(500);
/// How many lengths are kept: three minutes of them.
const KEPT: usize = 360;

/// The latest snapshot and what came before it; clones share them.
#[derive(Clone)]
pub(crate) struct Feed {
    /// As JSON: written once, whoever looks.
    latest: watch::Receiver<String>,
    queues: Arc<Mutex<Queues>>,
}

/// How many waited at each tick, by slot; the last one is the latest.
type Queues = BTreeMap<String, VecDeque<usize>>;

// === impl Feed ===

impl Feed {
    /// Looks at `slots` from now on, until the runtime ends.
    pub(crate) fn new(slots: Slots) -> Self {
        let (sender, latest) = watch::channel(json(&slots.snapshot()));
        let feed = Self { latest, queues: Arc::default() };
        let queues = feed.queues.clone();
        tokio::spawn(async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let snapshot = slots.snapshot();
                note(&mut queues.lock().unwrap_or_else(PoisonError::into_inner), &snapshot);
                sender.send_replace(json(&snapshot));
            }
        });
        feed
    }

    /// Sends the lengths of the queues once, then each snapshot.
    pub(crate) fn events(&self) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let queues = json(&*self.queues.lock().unwrap_or_else(PoisonError::into_inner));
        let history = Event::default().event("queues").data(queues);
        let mut latest = self.latest.clone();
        latest.mark_changed();
        let snapshots = stream::unfold(latest, async |mut latest| {
            latest.changed().await.ok()?;
            let snapshot = Event::default().event("snapshot").data(latest.borrow_and_update().as_str());
            Some((Ok(snapshot), latest))
        });
        Sse::new(stream::once(async { Ok(history) }).chain(snapshots)).keep_alive(KeepAlive::default())
    }
}

fn note(queues: &mut Queues, snapshot: &Snapshot) {
    queues.retain(|name, _| snapshot.slots.iter().any(|slot| slot.key.as_str() == name));
    for slot in &snapshot.slots {
        let lengths = queues.entry(slot.key.to_string()).or_default();
        lengths.push_back(slot.waiting);
        lengths.drain(..lengths.len().saturating_sub(KEPT));
    }
}

/// What is written here has text for its keys and cannot fail.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
