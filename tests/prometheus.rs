//! The example `prometheus`: what a scrape gets has the documented names, bounded labels, and numbers that add up.
//!
//! `cargo test --test prometheus` alone builds no example: it runs the one that was built last.

#![cfg(feature = "metrics")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    error::Error,
    process::Command,
};

type TestResult = Result<(), Box<dyn Error>>;

const SLOTS: [&str; 3] = ["news.test", "other", "shop.test"];
/// Ten requests to each of five hosts, three of which share a label with a permit that was taken by hand.
const ASKED: [f64; 3] = [10.0, 31.0, 10.0];
/// That permit, which is still out.
const BY_HAND: [f64; 3] = [0.0, 1.0, 0.0];

/// What a scrape gets.
struct Scrape {
    /// By name: what it is, as in `counter`.
    kinds: BTreeMap<String, String>,
    samples: Vec<Sample>,
}

struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

// === impl Scrape ===

impl Scrape {
    fn parse(text: &str) -> Result<Self, Box<dyn Error>> {
        let (mut kinds, mut helped, mut samples) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped.insert(help.split(' ').next().unwrap_or_default().to_owned());
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').ok_or(line)?;
                kinds.insert(name.to_owned(), kind.to_owned());
            } else {
                let (series, value) = line.rsplit_once(' ').ok_or(line)?;
                let (name, labels) = series.split_once('{').ok_or(line)?;
                let labels = labels.trim_end_matches('}').split(',').map(|label| {
                    let (name, value) = label.split_once('=').ok_or(label)?;
                    Ok((name.to_owned(), value.trim_matches('"').to_owned()))
                });
                let labels = labels.collect::<Result<_, &str>>()?;
                samples.push(Sample { name: name.to_owned(), labels, value: value.parse()? });
            }
        }
        assert_eq!(helped, kinds.keys().cloned().collect(), "each says what it means");
        Ok(Self { kinds, samples })
    }

    fn all<'a>(&'a self, name: &'a str, slot: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.name == name && sample.labels["slot"] == slot)
    }

    /// Adds up what is there under `name` for `slot`, whatever its other labels.
    fn sum(&self, name: &str, slot: &str) -> f64 {
        self.all(name, slot).map(|sample| sample.value).sum()
    }
}

fn run() -> Result<Scrape, Box<dyn Error>> {
    let test = env::current_exe()?;
    let target = test.ancestors().nth(2).ok_or("no target directory")?;
    let path = target.join("examples").join(format!("prometheus{}", env::consts::EXE_SUFFIX));
    if !path.exists() {
        return Err(format!("{} is missing: cargo build --example prometheus", path.display()).into());
    }
    let output = Command::new(path).output()?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    Scrape::parse(std::str::from_utf8(&output.stdout)?)
}

// V1
#[test]
fn a_scrape_has_the_documented_names_with_bounded_labels_and_adds_up() -> TestResult {
    let scrape = run()?;
    let kinds: Vec<_> = scrape.kinds.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    let expected = [
        ("tower_slot_body_duration_seconds", "histogram"),
        ("tower_slot_connection_duration_seconds", "histogram"),
        ("tower_slot_headers_duration_seconds", "histogram"),
        ("tower_slot_requests_cancelled_total", "counter"),
        ("tower_slot_requests_failed_total", "counter"),
        ("tower_slot_requests_finished_total", "counter"),
        ("tower_slot_requests_gone_total", "counter"),
        ("tower_slot_requests_in_flight", "gauge"),
        ("tower_slot_requests_refused_total", "counter"),
        ("tower_slot_requests_started_total", "counter"),
        ("tower_slot_requests_timed_out_total", "counter"),
        ("tower_slot_requests_waiting", "gauge"),
        ("tower_slot_wait_duration_seconds", "histogram"),
    ];
    assert_eq!(kinds, expected);

    let labels: BTreeSet<_> = scrape.samples.iter().map(|sample| sample.labels["slot"].as_str()).collect();
    assert_eq!(labels, SLOTS.into(), "strangers share one label");
    let reasons: BTreeSet<_> =
        scrape.samples.iter().filter_map(|sample| sample.labels.get("reason")).map(String::as_str).collect();
    assert_eq!(reasons, ["concurrency", "none", "pace", "total"].into());

    for ((slot, asked), by_hand) in SLOTS.into_iter().zip(ASKED).zip(BY_HAND) {
        let requests = |what: &str| scrape.sum(&format!("tower_slot_requests_{what}_total"), slot);
        let started = requests("started");
        assert_eq!(started + requests("refused"), asked, "{slot}");
        let finished = requests("finished");
        assert_eq!(finished + by_hand, started, "{slot}");
        for what in ["failed", "cancelled", "gone", "timed_out"] {
            assert_eq!(requests(what), 0.0, "{slot} {what}");
        }
        assert_eq!(scrape.sum("tower_slot_requests_in_flight", slot), by_hand, "{slot}: all is read");
        assert_eq!(scrape.sum("tower_slot_requests_waiting", slot), 0.0);

        for phase in ["headers", "body"] {
            let name = format!("tower_slot_{phase}_duration_seconds");
            assert_eq!(scrape.sum(&format!("{name}_count"), slot), finished, "{slot} {phase}");
            let buckets = format!("{name}_bucket");
            let buckets: Vec<_> = scrape.all(&buckets, slot).collect();
            assert!(buckets.is_sorted_by(|a, b| a.value <= b.value), "{slot} {phase}");
            let last = buckets.last().ok_or("no buckets")?;
            assert_eq!((last.labels["le"].as_str(), last.value), ("+Inf", finished));
        }
        // Each page takes 20 ms to its headers.
        assert!(scrape.sum("tower_slot_headers_duration_seconds_sum", slot) >= 0.02 * finished);
        let waits = scrape.sum("tower_slot_wait_duration_seconds_count", slot);
        assert!(waits >= started, "each start has one at least: {waits} {started}");
    }

    let waited = |slot: &str, reason: &str| {
        let mut sums = scrape.all("tower_slot_wait_duration_seconds_sum", slot);
        sums.find(|sum| sum.labels["reason"] == reason).map_or(0.0, |sum| sum.value)
    };
    // Seven waiters, two by two behind 20 ms; nine or so, one behind the other with 10 ms between them.
    assert!(waited("news.test", "concurrency") > 0.3, "{}", waited("news.test", "concurrency"));
    assert!(waited("shop.test", "pace") > 0.2, "{}", waited("shop.test", "pace"));
    assert_eq!((waited("news.test", "pace"), waited("shop.test", "concurrency")), (0.0, 0.0));
    Ok(())
}
