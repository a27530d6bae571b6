//! What the scenes found: one row each, with a verdict that decides the exit code.
//!
//! Too early and above a limit are never forgiven. Lateness depends on the machine too: it is told in percent, and
//! only beyond a quarter does it count as a failure.

use std::{
    fmt,
    io::{self, Write},
    time::Duration,
};

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;

/// How much a time may fall short, as a share: the way to the server takes its time too, and not always the same.
const EARLY: f64 = 0.01;
/// Up to here lateness is what timers and a quiet machine cost.
const QUIET: f64 = 0.03;
/// From here on lateness is a failure.
const LATE: f64 = 0.25;

/// One scene, as it was meant to go and as it went.
pub(crate) struct Row {
    pub(crate) scene: &'static str,
    pub(crate) expected: String,
    pub(crate) measured: String,
    pub(crate) verdict: Verdict,
}

/// What a measurement is worth; the later variants are the worse ones.
#[derive(Debug, PartialEq, PartialOrd)]
pub(crate) enum Verdict {
    /// Nothing was asked of it: it stands beside another row.
    Shown,
    /// As expected, or late by this share.
    Kept(f64),
    /// Late by a share that is beyond [`LATE`].
    TooLate(f64),
    /// Something came before its time.
    TooEarly,
    /// More at one time than the limit allows.
    AboveLimit,
    /// It did not come to a measurement, or something else was not as the scene needs it.
    Failed(String),
}

// === impl Row ===

impl Row {
    /// Creates the row of a scene that broke off.
    pub(crate) fn failed(scene: &'static str, error: &dyn fmt::Display) -> Self {
        Self {
            scene,
            expected: String::new(),
            measured: String::new(),
            verdict: Verdict::Failed(error.to_string()),
        }
    }
}

/// Writes `rows` as a table, or as one JSON object a line.
pub(crate) fn write(rows: &[Row], json: bool, out: &mut dyn Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        scene: &'a str,
        expected: &'a str,
        measured: &'a str,
        verdict: String,
        passed: bool,
    }

    if json {
        for row in rows {
            write_json(
                &Line {
                    scene: row.scene,
                    expected: &row.expected,
                    measured: &row.measured,
                    verdict: row.verdict.to_string(),
                    passed: row.verdict.passed(),
                },
                out,
            )?;
        }
    } else {
        let mut table = table(["scene", "expected", "measured", "verdict"]);
        for row in rows {
            table.add_row([row.scene, &row.expected, &row.measured, &row.verdict.to_string()]);
        }
        writeln!(out, "{table}")?;
    }
    out.flush()
}

/// Creates an empty table in the one look of this program.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    table
}

/// Writes `value` as one line of JSON.
pub(crate) fn write_json(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

// === impl Verdict ===

impl Verdict {
    /// Judges a time that should lie between `low` and `high`.
    pub(crate) fn time(measured: Duration, low: Duration, high: Duration) -> Self {
        let late = measured.as_secs_f64() / high.as_secs_f64() - 1.0;
        if measured.as_secs_f64() < low.as_secs_f64() * (1.0 - EARLY) {
            Self::TooEarly
        } else if late > LATE {
            Self::TooLate(late)
        } else {
            Self::Kept(late.max(0.0))
        }
    }

    /// Judges what must not be shorter than `least`, not by a microsecond.
    pub(crate) fn at_least(measured: Duration, least: Duration) -> Self {
        if measured < least { Self::TooEarly } else { Self::Kept(0.0) }
    }

    /// Judges a number that must not be above `limit`.
    pub(crate) fn at_most(measured: usize, limit: usize) -> Self {
        if measured > limit { Self::AboveLimit } else { Self::Kept(0.0) }
    }

    /// Returns the worse of two verdicts.
    pub(crate) fn and(self, other: Self) -> Self {
        if other > self { other } else { self }
    }

    /// Whether the program may end with success.
    pub(crate) fn passed(&self) -> bool {
        matches!(self, Self::Shown | Self::Kept(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shown => f.write_str("for show"),
            Self::Kept(late) if *late < 0.0005 => f.write_str("ok"),
            Self::Kept(late) if *late <= QUIET => write!(f, "ok, +{:.1} %", late * 100.0),
            Self::Kept(late) => write!(f, "late, +{:.1} %", late * 100.0),
            Self::TooLate(late) => write!(f, "TOO LATE, +{:.0} %", late * 100.0),
            Self::TooEarly => f.write_str("TOO EARLY"),
            Self::AboveLimit => f.write_str("ABOVE THE LIMIT"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hair_too_early_is_forgiven_and_a_quarter_too_late() {
        let judge = |ms| {
            Verdict::time(
                Duration::from_millis(ms),
                Duration::from_millis(1_000),
                Duration::from_millis(2_000),
            )
        };
        assert_eq!(judge(989), Verdict::TooEarly);
        assert_eq!(judge(990), Verdict::Kept(0.0));
        assert_eq!(judge(2_000), Verdict::Kept(0.0));
        assert_eq!(judge(2_500), Verdict::Kept(0.25));
        assert_eq!(judge(3_000), Verdict::TooLate(0.5));
        assert!(judge(2_500).passed() && !judge(3_000).passed() && !judge(989).passed());
    }

    #[test]
    fn what_must_not_be_shorter_or_more_is_forgiven_nothing() {
        let second = Duration::from_secs(1);
        assert_eq!(Verdict::at_least(second, second), Verdict::Kept(0.0));
        assert_eq!(Verdict::at_least(second - Duration::from_nanos(1), second), Verdict::TooEarly);
        assert_eq!(Verdict::at_most(8, 8), Verdict::Kept(0.0));
        assert_eq!(Verdict::at_most(9, 8), Verdict::AboveLimit);
    }

    #[test]
    fn the_worse_of_two_verdicts_is_what_counts() {
        let verdicts = || {
            let failed = Verdict::Failed("no server".to_owned());
            let late = [Verdict::Shown, Verdict::Kept(0.0), Verdict::Kept(0.1), Verdict::TooLate(0.5)];
            late.into_iter().chain([Verdict::TooEarly, Verdict::AboveLimit, failed]).enumerate()
        };
        for (n, worse) in verdicts() {
            for (_, better) in verdicts().take(n) {
                let text = worse.to_string();
                let Some((_, again)) = verdicts().nth(n) else { continue };
                assert_eq!(better.and(again).to_string(), text);
            }
        }
    }

    #[test]
    fn rows_become_one_line_of_json_each() {
        let mut out = Vec::new();
        let rows = [Row::failed("pace", &"no server"), Row::failed("bodies", &"no server")];
        write(&rows, true, &mut out).unwrap();
        let line = |scene| {
            format!(
                "{{\"scene\":\"{scene}\",\"expected\":\"\",\"measured\":\"\",\
                 \"verdict\":\"FAILED: no server\",\"passed\":false}}\n"
            )
        };
        assert_eq!(String::from_utf8(out).unwrap(), line("pace") + &line("bodies"));
    }
}
