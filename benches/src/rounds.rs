//! Contenders measured in turns, so that what else the machine does falls on all of them.

use std::fmt;
use std::time::Instant;

/// One contender's figures, one per round; Display is the median, and the quarters below and above it.
#[derive(Clone, Debug)]
pub struct Figures(Vec<f64>);

/// Has each of them give a figure in every round, forth and back; the first round only warms up.
pub fn rounds<const N: usize>(
    rounds: usize,
    mut contenders: [Box<dyn FnMut() -> f64 + '_>; N],
) -> [Figures; N] {
    let mut figures = [(); N].map(|()| Figures(Vec::with_capacity(rounds)));
    contenders.iter_mut().for_each(|contender| {
        contender();
    });
    for round in 0..rounds {
        for at in 0..N {
            let at = if round % 2 == 0 { at } else { N - 1 - at };
            figures[at].0.push(contenders[at]());
        }
    }
    figures
}

/// The nanoseconds that one takes if `run` does so many: the median of pieces so short that most are not interrupted.
pub fn nanos_each(pieces: usize, size: usize, mut run: impl FnMut(usize)) -> f64 {
    let piece = |_| {
        let start = Instant::now();
        run(size);
        start.elapsed().as_nanos() as f64 / size as f64
    };
    Figures::from_iter((0..pieces).map(piece)).median()
}

// === impl Figures ===

impl Figures {
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// What `f` makes of both figures of each round.
    pub fn with(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(own, other)| f(*own, *other)).collect())
    }

    /// The ratio to the other's figure of the same round.
    pub fn over(&self, other: &Self) -> Self {
        self.with(other, |own, other| own / other)
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * share).round() as usize]
    }
}

impl FromIterator<f64> for Figures {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let [low, median, high] = [0.25, 0.5, 0.75].map(|share| self.quantile(share));
        write!(f, "{median:.digits$} ({low:.digits$} to {high:.digits$})")
    }
}
