//! Licence expressions: is there a way to use this crate under licences we accept?

/// What may be linked into an Apache-2.0 program without further duties than naming the authors.
pub(super) const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether the expression (`MIT OR Apache-2.0`, `(A OR B) AND C`, the old `A/B`) can be met with accepted licences;
/// an error if it is no expression.
pub(super) fn accepted(expression: &str) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = Words { words: spaced.split_whitespace().collect(), at: 0 };
    let verdict = words.any_of();
    match (verdict, words.peek()) {
        (Some(verdict), None) => Ok(verdict),
        _ => Err(format!("cannot read the licence {expression:?}")),
    }
}

struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn any_of(&mut self) -> Option<bool> {
        let mut verdict = self.all_of()?;
        while self.take("OR") {
            verdict |= self.all_of()?;
        }
        Some(verdict)
    }

    fn all_of(&mut self) -> Option<bool> {
        let mut verdict = self.one()?;
        while self.take("AND") {
            verdict &= self.one()?;
        }
        Some(verdict)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let verdict = self.any_of()?;
            return self.take(")").then_some(verdict);
        }
        let id = self.id()?;
        if self.take("WITH") {
            let exception = self.id()?;
            return Some(ACCEPTED.contains(&format!("{id} WITH {exception}").as_str()));
        }
        Some(ACCEPTED.contains(&id))
    }

    fn id(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        if matches!(word, "(" | ")" | "AND" | "OR" | "WITH") {
            return None;
        }
        self.at += 1;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR GPL-2.0-only) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "GPL-3.0-only AND ISC OR MIT",
        ] {
            assert_eq!(accepted(good), Ok(true), "{good}");
        }
        for bad in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "MIT AND (GPL-3.0-only OR AGPL-3.0-only)",
            "GPL-2.0-only WITH Classpath-exception-2.0",
            "MIT WITH Strings-attached",
            "mit-ish",
        ] {
            assert_eq!(accepted(bad), Ok(false), "{bad}");
        }
        for nonsense in ["", "MIT OR", "AND", "(MIT", "MIT)", "MIT Apache-2.0", "MIT WITH", "OR MIT"] {
            assert!(accepted(nonsense).is_err(), "{nonsense}");
        }
    }
}
