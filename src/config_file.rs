//! The configuration from a file, in whatever format serde reads: TOML, JSON, YAML.
//!
//! Fields are called as the builder's methods are, and checked as they are. What is unknown or set twice is refused.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde_core::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Unexpected, Visitor};

use crate::config::{ConfigError, SlotConfig};
use crate::hold::Hold;
use crate::jitter::Jitter;
use crate::key::SlotKey;
use crate::limits::SlotLimits;

/// The fields of a slot.
const LIMITS: [&str; 6] = ["concurrency", "delay", "jitter", "queue_capacity", "wait_timeout", "hold"];

/// The other fields of a configuration.
const ALL: [&str; 7] =
    ["total_concurrency", "idle_timeout", "max_slots", "overflow_slot", "statistics", "slots", "groups"];

/// How it is written that there is no limit.
const UNLIMITED: &str = "unlimited";

struct ConfigVisitor;

/// Reads the limits of a slot, or of all slots where it has no name.
struct LimitsSeed<'a>(Option<&'a SlotKey>);

/// Reads the name of a field that has to be known and not to have come yet. What is wrong with it is said while it is
/// read, so that the format can tell where.
struct Field<'a> {
    slot: Option<&'a SlotKey>,
    known: &'a [&'static [&'static str]],
    seen: &'a mut BTreeSet<&'static str>,
}

/// Reads a table by name and hands each name to a function, with what can read the value.
struct Table<F>(F);

/// Reads the value of a field, which may be written in several ways. What is wrong with it is told with the slot and
/// the field.
struct Value<'a, T> {
    slot: Option<&'a SlotKey>,
    field: &'static str,
    value: PhantomData<T>,
}

/// What can be read as a [`Value`].
trait Written: Sized {
    /// The ways it is written in.
    const EXPECTED: &'static str;

    fn number(_: f64) -> Option<Self> {
        None
    }

    fn count(_: u64) -> Option<Self> {
        None
    }

    fn text(text: &str) -> Option<Self>;
}

/// A number; `None` is unlimited.
struct Count(Option<usize>);

/// A time; `None` is unlimited.
struct Time(Option<Duration>);

// === impl SlotConfig, SlotLimits ===

/// Fields are called as the [builder](crate::SlotConfigBuilder)'s methods are, `slots` and `groups` are tables by name,
/// times are written with their unit as in `"200ms"` or `"1m 30s"`, and no limit is written `"unlimited"`. A field that
/// is unknown or set twice is refused, and values are checked as [`build`](crate::SlotConfigBuilder::build) does, with
/// the same words.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_slot::SlotConfig;
///
/// let config: SlotConfig = toml::from_str(r#"
///     concurrency = 4              # or "unlimited"
///     delay = "200ms"
///     jitter = "50%"               # or 0.5; or "100ms", to add up to as much
///     queue_capacity = 100         # or "unlimited"
///     wait_timeout = "1m 30s"      # or "unlimited"
///     hold = "body"                # or "headers"
///     total_concurrency = 64       # or "unlimited"
///     idle_timeout = "60s"
///     max_slots = 10000            # or "unlimited"
///     overflow_slot = "rest"
///     statistics = true            # the default
///
///     [slots]
///     "api.test" = { delay = "50ms", concurrency = 2 }
///     "*.slow.test" = { delay = "5s" }
///
///     [groups]
///     cdn = ["*.cdn.test", "img.test"]
/// "#)?;
/// let refused = toml::from_str::<SlotConfig>("dealy = \"1s\"").unwrap_err();
/// assert_eq!(refused.message(), "all slots: unknown field \"dealy\", did you mean \"delay\"?");
/// # Ok(()) }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for SlotConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ConfigVisitor)
    }
}

/// The fields of one slot in a [`SlotConfig`]. Values are checked when the limits come into use.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for SlotLimits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        LimitsSeed(None).deserialize(deserializer)
    }
}

// === impl ConfigVisitor ===

impl<'de> Visitor<'de> for ConfigVisitor {
    type Value = SlotConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a configuration of slots")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SlotConfig, A::Error> {
        let (mut config, mut limits) = (SlotConfig::builder(), SlotLimits::new());
        let mut seen = BTreeSet::new();
        while let Some(field) =
            map.next_key_seed(Field { slot: None, known: &[&LIMITS, &ALL], seen: &mut seen })?
        {
            config = match field {
                "total_concurrency" => match value(&mut map, None, field)? {
                    Count(Some(n)) => config.total_concurrency(n),
                    Count(None) => config.unlimited_total(),
                },
                "max_slots" => match value(&mut map, None, field)? {
                    Count(Some(n)) => config.max_slots(n),
                    Count(None) => config.unlimited_slots(),
                },
                "statistics" => config.statistics(map.next_value()?),
                "idle_timeout" => config.idle_timeout(value(&mut map, None, field)?),
                "overflow_slot" => config.overflow_slot(map.next_value::<String>()?),
                "slots" => {
                    let mut slots = Vec::new();
                    map.next_value_seed(Table(&mut slots))?;
                    slots.into_iter().fold(config, |config, (name, limits)| config.slot(name, limits))
                }
                "groups" => {
                    let mut groups: Vec<(SlotKey, Vec<String>)> = Vec::new();
                    map.next_value_seed(Table(&mut groups))?;
                    groups.into_iter().fold(config, |config, (name, hosts)| config.group(name, hosts))
                }
                field => {
                    limit(&mut limits, &mut map, None, field)?;
                    config
                }
            };
        }
        config.defaults(&limits).build().map_err(A::Error::custom)
    }
}

// === impl LimitsSeed ===

impl<'de> DeserializeSeed<'de> for LimitsSeed<'_> {
    type Value = SlotLimits;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<SlotLimits, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LimitsSeed<'_> {
    type Value = SlotLimits;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the limits of a slot")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SlotLimits, A::Error> {
        let mut limits = SlotLimits::new();
        let mut seen = BTreeSet::new();
        while let Some(field) =
            map.next_key_seed(Field { slot: self.0, known: &[&LIMITS], seen: &mut seen })?
        {
            limit(&mut limits, &mut map, self.0, field)?;
        }
        Ok(limits)
    }
}

/// Reads the value of one of [`LIMITS`].
fn limit<'de, A: MapAccess<'de>>(
    limits: &mut SlotLimits,
    map: &mut A,
    slot: Option<&SlotKey>,
    field: &'static str,
) -> Result<(), A::Error> {
    match field {
        "concurrency" => limits.concurrency = Some(value::<Count, A>(map, slot, field)?.0),
        "queue_capacity" => limits.queue_capacity = Some(value::<Count, A>(map, slot, field)?.0),
        "wait_timeout" => limits.wait_timeout = Some(value::<Time, A>(map, slot, field)?.0),
        "delay" => limits.delay = Some(value(map, slot, field)?),
        "jitter" => limits.jitter = Some(value(map, slot, field)?),
        _ => limits.hold = Some(value(map, slot, field)?),
    }
    Ok(())
}

// === impl Table ===

/// What a table's values are read with.
trait Row: Sized {
    fn read<'de, A: MapAccess<'de>>(map: &mut A, name: &SlotKey) -> Result<Self, A::Error>;
}

impl Row for SlotLimits {
    fn read<'de, A: MapAccess<'de>>(map: &mut A, name: &SlotKey) -> Result<Self, A::Error> {
        map.next_value_seed(LimitsSeed(Some(name)))
    }
}

impl Row for Vec<String> {
    fn read<'de, A: MapAccess<'de>>(map: &mut A, _: &SlotKey) -> Result<Self, A::Error> {
        map.next_value()
    }
}

impl<'de, T: Row> DeserializeSeed<'de> for Table<&mut Vec<(SlotKey, T)>> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Row> Visitor<'de> for Table<&mut Vec<(SlotKey, T)>> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let name = SlotKey::from(name);
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("{name:?} is set twice")));
            }
            let row = T::read(&mut map, &name)?;
            self.0.push((name, row));
        }
        Ok(())
    }
}

// === impl Value ===

fn value<'de, T: Written, A: MapAccess<'de>>(
    map: &mut A,
    slot: Option<&SlotKey>,
    field: &'static str,
) -> Result<T, A::Error> {
    map.next_value_seed(Value { slot, field, value: PhantomData })
}

impl<T: Written> Value<'_, T> {
    fn or_wrong<E: Error>(&self, value: Option<T>, found: Unexpected<'_>) -> Result<T, E> {
        let problem = || format!("found {found}, expected {}", T::EXPECTED);
        value.ok_or_else(|| E::custom(ConfigError::new(self.slot, self.field, problem())))
    }
}

impl<'de, T: Written> DeserializeSeed<'de> for Value<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<T: Written> Visitor<'_> for Value<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<T, E> {
        self.or_wrong(T::count(n).or_else(|| T::number(n as f64)), Unexpected::Unsigned(n))
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<T, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => self.or_wrong(T::number(n as f64), Unexpected::Signed(n)),
        }
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<T, E> {
        self.or_wrong(T::number(n), Unexpected::Float(n))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        self.or_wrong(T::text(text), Unexpected::Str(text))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        self.or_wrong(None, Unexpected::Bool(value))
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        self.or_wrong(None, Unexpected::Unit)
    }
}

impl Written for Count {
    const EXPECTED: &'static str = "a whole number, or \"unlimited\"";

    fn count(n: u64) -> Option<Self> {
        usize::try_from(n).ok().map(|n| Self(Some(n)))
    }

    fn text(text: &str) -> Option<Self> {
        (text == UNLIMITED).then_some(Self(None))
    }
}

impl Written for Time {
    const EXPECTED: &'static str = "a time with its unit such as \"200ms\" or \"1m 30s\", or \"unlimited\"";

    fn text(text: &str) -> Option<Self> {
        if text == UNLIMITED { Some(Self(None)) } else { Duration::text(text).map(|time| Self(Some(time))) }
    }
}

impl Written for Duration {
    const EXPECTED: &'static str = "a time with its unit such as \"200ms\" or \"1m 30s\"";

    fn text(text: &str) -> Option<Self> {
        humantime::parse_duration(text).ok()
    }
}

impl Written for Jitter {
    const EXPECTED: &'static str = "a share of the delay such as 0.5 or \"50%\", or a time such as \"100ms\"";

    fn number(ratio: f64) -> Option<Self> {
        Some(Self::ratio(ratio))
    }

    fn text(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok().map(|percent| Self::ratio(percent / 100.0)),
            None => Duration::text(text).map(Self::up_to),
        }
    }
}

impl Written for Hold {
    const EXPECTED: &'static str = "\"body\" or \"headers\"";

    fn text(text: &str) -> Option<Self> {
        match text {
            "body" => Some(Self::Body),
            "headers" => Some(Self::Headers),
            _ => None,
        }
    }
}

// === impl Field ===

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Field<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, field: &str) -> Result<&'static str, E> {
        let wrong = |problem: fmt::Arguments<'_>| match self.slot {
            Some(slot) => E::custom(format_args!("slot {slot:?}: {problem}")),
            None => E::custom(format_args!("all slots: {problem}")),
        };
        // Only what is the same is as near as 1.
        let nearness = |known: &&str| strsim::jaro_winkler(known, field);
        let known = self.known.iter().copied().flatten();
        let nearest = known.max_by(|a, b| nearness(a).total_cmp(&nearness(b)));
        let known = nearest.copied().unwrap_or_default();
        if known != field {
            return Err(wrong(format_args!("unknown field {field:?}, did you mean {known:?}?")));
        }
        if !self.seen.insert(known) {
            return Err(wrong(format_args!("{field} is set twice")));
        }
        Ok(known)
    }
}
