//! The difference between two texts, line by line.

use askama::Template;

/// A line of a difference.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DiffLine {
    Same(String),
    Removed(String),
    Added(String),
}

/// A difference as people see it.
#[derive(Template)]
#[template(path = "diff.html")]
pub(super) struct Diff {
    pub(super) lines: Vec<DiffLine>,
}

/// Longer texts are shown one after the other: the table below grows with the product of their lines.
const MOST: usize = 1_000;

impl Diff {
    /// The lines of both, by their longest common subsequence.
    pub(super) fn new(before: &str, after: &str) -> Self {
        let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
        if old.len() > MOST || new.len() > MOST {
            let removed = old.iter().map(|line| DiffLine::Removed((*line).to_owned()));
            let added = new.iter().map(|line| DiffLine::Added((*line).to_owned()));
            return Self { lines: removed.chain(added).collect() };
        }
        // common[i][j]: the length of the longest common subsequence of old[i..] and new[j..].
        let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
        for i in (0..old.len()).rev() {
            for j in (0..new.len()).rev() {
                common[i][j] = if old[i] == new[j] {
                    common[i + 1][j + 1] + 1
                } else {
                    common[i + 1][j].max(common[i][j + 1])
                };
            }
        }
        let (mut i, mut j, mut lines) = (0, 0, Vec::new());
        while i < old.len() || j < new.len() {
            if i < old.len() && j < new.len() && old[i] == new[j] {
                lines.push(DiffLine::Same(old[i].to_owned()));
                (i, j) = (i + 1, j + 1);
            } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
                lines.push(DiffLine::Removed(old[i].to_owned()));
                i += 1;
            } else {
                lines.push(DiffLine::Added(new[j].to_owned()));
                j += 1;
            }
        }
        Self { lines }
    }

    /// True if nothing differs.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| matches!(line, DiffLine::Same(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_lines_differ() {
        let diff = Diff::new("a\nb\nc", "a\nx\nc\nd");
        let same = |text: &str| DiffLine::Same(text.to_owned());
        let expected = [
            same("a"),
            DiffLine::Removed("b".into()),
            DiffLine::Added("x".into()),
            same("c"),
            DiffLine::Added("d".into()),
        ];
        assert_eq!(diff.lines, expected);
        assert!(Diff::new("a\nb", "a\nb").is_empty());
        assert_eq!(Diff::new("", "a").lines, [DiffLine::Added("a".into())]);
    }
}
