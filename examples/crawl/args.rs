//! The command line: what to do, and the limits to do it under.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use clap::{CommandFactory, Parser, error::ErrorKind};
use tower_slot::{Jitter, SlotConfig, SlotKey, SlotLimits};

use crate::{picture::Picture, target::Target};

/// What the command line asks for.
pub(crate) struct Order {
    pub(crate) job: Job,
    /// For a timeline of it.
    pub(crate) picture: Option<Picture>,
}

/// What is to be done.
pub(crate) enum Job {
    Scenes { json: bool },
    Download(Box<Plan>),
}

/// A download, ready to begin.
pub(crate) struct Plan {
    pub(crate) config: SlotConfig,
    /// The slot of each host that is not in its own.
    pub(crate) groups: HashMap<SlotKey, SlotKey>,
    pub(crate) timeout: Duration,
    pub(crate) json: bool,
    pub(crate) targets: Vec<Target>,
    /// Whether standard input has more of them.
    pub(crate) stdin: bool,
}

/// Downloads URLs politely, each host in a slot of its own; without a URL, shows what slots do.
///
/// Without a URL a small site is started on loopback, and a table tells what each scene should show and what was
/// measured at the site's server. Standard input is read only where `-` stands among the URLs: one URL a line; blank
/// lines, and lines that begin with `#`, are passed over.
///
/// Each URL gets a line when it is done: status, bytes, how long it waited, how long until the headers, how long in the
/// body, its slot. Bodies are read to their end and counted, not kept. Redirects are not followed. User names and
/// passwords in URLs are neither sent nor printed. A table of the slots comes last.
///
/// Exit code: 0, also when a server answers with an error status; 1 when a URL could not be read to its end, or a scene
/// failed; 2 for a bad argument.
#[derive(Parser)]
#[command(name = "crawl", version)]
struct Args {
    /// What to download; `-` for URLs from standard input
    #[arg(value_name = "URL")]
    urls: Vec<String>,

    /// Requests in one slot at the same time
    #[arg(long, value_name = "N", default_value = "2", value_parser = at_least_one, requires = "urls")]
    concurrency: usize,

    /// From one start in a slot to the next: 200ms, 1s, 1m 30s
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration, requires = "urls")]
    delay: Duration,

    /// Spread of the delay: 50% draws from half of it to one and a half, 100ms adds up to as much
    #[arg(long, value_name = "SPREAD", default_value = "0%", value_parser = jitter, requires = "urls")]
    jitter: Jitter,

    /// Requests in all slots together at the same time
    #[arg(long, value_name = "N", default_value = "32", value_parser = at_least_one, requires = "urls")]
    total: usize,

    /// Longest time from a request's start to the end of its body; waiting for the start does not count
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timeout, requires = "urls")]
    timeout: Duration,

    /// Other limits for one slot, which is a host or a group: api.example.com:delay=50ms,concurrency=2
    ///
    /// `delay`, `jitter` and `concurrency` can be set; what is not set is as for the others. May be repeated.
    #[arg(long = "slot", value_name = "NAME:LIMITS", value_parser = slot, requires = "urls")]
    slots: Vec<Slot>,

    /// Several hosts in one slot: shop=a.example,b.example
    ///
    /// May be repeated.
    #[arg(long = "group", value_name = "NAME=HOST,HOST", value_parser = group, requires = "urls")]
    groups: Vec<Group>,

    /// All limits, slots and groups from a TOML file instead; see `tower_slot::SlotConfig` for its fields
    ///
    /// What it leaves open is as in the library, not as here: 8 requests in one slot at the same time, no delay, no limit
    /// for all slots together.
    #[arg(long, value_name = "FILE", value_parser = config, requires = "urls",
        conflicts_with_all = ["concurrency", "delay", "jitter", "total", "slots", "groups"])]
    config: Option<SlotConfig>,

    /// One JSON object a line instead of lines for people and tables
    #[arg(long)]
    json: bool,

    /// Draw where each request spent its time, a lane per slot, as SVG
    ///
    /// From a few hundred requests on it is drawn how many were in each phase. A request that failed before its headers
    /// is left out.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone)]
struct Slot {
    name: String,
    limits: SlotLimits,
}

#[derive(Clone)]
struct Group {
    name: String,
    hosts: Vec<SlotKey>,
}

/// Reads the command line.
///
/// # Errors
/// What is wrong with it; also when help was asked for.
pub(crate) fn parse() -> Result<Order, clap::Error> {
    let mut args = Args::try_parse().map_err(|error| match error.kind() {
        ErrorKind::MissingRequiredArgument => bad("the limits are for downloading, and there is no URL"),
        _ => error,
    })?;
    let svg = args.svg.take();
    let job = match args.urls.is_empty() {
        true => Job::Scenes { json: args.json },
        false => Job::Download(Box::new(args.plan().map_err(bad)?)),
    };
    // Created here: a path that cannot be written to is told before the work, not after it.
    Ok(Order { job, picture: svg.map(Picture::create).transpose().map_err(bad)? })
}

fn bad(why: impl std::fmt::Display) -> clap::Error {
    Args::command().error(ErrorKind::ValueValidation, why)
}

// === impl Args ===

impl Args {
    fn plan(self) -> Result<Plan, String> {
        let mut groups = HashMap::new();
        for group in &self.groups {
            for host in &group.hosts {
                let known = groups.insert(host.clone(), SlotKey::new(group.name.as_str()));
                if known.is_some_and(|known| known.as_str() != group.name) {
                    return Err(format!("host \"{host}\" is in more than one group"));
                }
            }
        }

        let mut config = SlotConfig::builder()
            .concurrency(self.concurrency)
            .delay(self.delay)
            .jitter(self.jitter)
            .total_concurrency(self.total);
        let mut named = Vec::new();
        for Slot { name, limits } in self.slots {
            // A group's name is taken as it is; all else is a host, which may be written in many ways.
            let is_group = self.groups.iter().any(|group| group.name == name);
            let key = if is_group { SlotKey::new(name) } else { host(&name)? };
            if named.contains(&key) {
                return Err(format!("slot \"{key}\" has more than one --slot"));
            }
            named.push(key.clone());
            config = config.slot(key, limits);
        }

        let config = match self.config {
            Some(config) => config,
            None => config.build().map_err(|error| error.to_string())?,
        };
        let (stdin, urls): (Vec<_>, Vec<_>) = self.urls.iter().partition(|url| *url == "-");
        Ok(Plan {
            config,
            groups,
            timeout: self.timeout,
            json: self.json,
            targets: urls
                .into_iter()
                .map(|url| Target::parse(url))
                .collect::<Result<_, _>>()
                .map_err(|refused| refused.to_string())?,
            stdin: !stdin.is_empty(),
        })
    }
}

// === value parsers ===

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("not a whole number from 1 up".to_owned()),
        Ok(n) => Ok(n),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 200ms, 1s or 1m 30s"))
}

#[cfg(feature = "serde")]
fn config(path: &str) -> Result<SlotConfig, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    // The error's own text shows the place in the file, over several lines.
    toml::from_str(&text).map_err(|error: toml::de::Error| match error.span() {
        Some(span) => format!("line {}: {}", 1 + text[..span.start].matches('\n').count(), error.message()),
        None => error.message().to_owned(),
    })
}

#[cfg(not(feature = "serde"))]
fn config(_: &str) -> Result<SlotConfig, String> {
    Err("this build reads no files: run it with `--features serde`".to_owned())
}

fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("not longer than nothing".to_owned()),
        time => Ok(time),
    }
}

fn jitter(text: &str) -> Result<Jitter, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return duration(text)
            .map(Jitter::up_to)
            .map_err(|_| "neither a share such as 50% nor a time such as 100ms".to_owned());
    };
    match percent.trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Jitter::ratio(percent / 100.0)),
        _ => Err("a share is within 0% and 100%".to_owned()),
    }
}

fn slot(text: &str) -> Result<Slot, String> {
    // The last colon: a host may be an IPv6 address.
    let (name, limits) = text
        .rsplit_once(':')
        .filter(|(name, limits)| !name.is_empty() && limits.contains('='))
        .ok_or("not of the form NAME:delay=50ms,concurrency=2")?;
    let mut set = SlotLimits::new();
    let mut seen = Vec::new();
    for limit in limits.split(',') {
        let (field, value) = limit.split_once('=').ok_or_else(|| format!("\"{limit}\" has no value"))?;
        let field = field.trim();
        if seen.contains(&field) {
            return Err(format!("{field} is set twice"));
        }
        seen.push(field);
        let value = value.trim();
        let wrong = |why: String| format!("{field}: {why}");
        set = match field {
            "delay" => set.delay(duration(value).map_err(wrong)?),
            "jitter" => set.jitter(jitter(value).map_err(wrong)?),
            "concurrency" => set.concurrency(at_least_one(value).map_err(wrong)?),
            _ => return Err(format!("\"{field}\" is none of delay, jitter, concurrency")),
        };
    }
    Ok(Slot { name: name.to_owned(), limits: set })
}

fn group(text: &str) -> Result<Group, String> {
    let (name, hosts) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("not of the form NAME=HOST,HOST")?;
    let hosts = hosts.split(',').map(|host| self::host(host.trim()));
    Ok(Group { name: name.to_owned(), hosts: hosts.collect::<Result<_, _>>()? })
}

/// Returns the key of `host`, which is all that may stand there.
fn host(host: &str) -> Result<SlotKey, String> {
    let key = SlotKey::host(host);
    if key.as_str().is_empty() || host.contains(['/', '@']) {
        return Err(format!("\"{host}\" is not a host"));
    }
    Ok(key)
}
