//! TOML key by key: every complaint names file, line and key.

use super::quantity;
use forebay_model::{Error, ErrorKind};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A place in the input, for messages.
pub(super) struct File<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

impl File<'_> {
    pub(super) fn wrong(&self, span: &Range<usize>, key: &str, text: impl std::fmt::Display) -> Error {
        let line = 1 + self.text[..span.start.min(self.text.len())].matches('\n').count();
        Error::new(ErrorKind::Invalid, format!("{}:{line}: {key}: {text}", self.name))
    }
}

/// A table whose keys are taken out one by one; what is left at the end was a mistake.
pub(super) struct Table<'a> {
    file: &'a File<'a>,
    /// What stands before a key in messages.
    pub(super) path: String,
    pub(super) span: Range<usize>,
    left: DeTable<'a>,
}

/// A value with what is needed to complain about it.
pub(super) struct Value<'a> {
    file: &'a File<'a>,
    pub(super) key: String,
    value: Spanned<DeValue<'a>>,
}

impl<'a> Table<'a> {
    /// The whole file.
    pub(super) fn top(file: &'a File<'a>) -> Result<Table<'a>, Error> {
        let parsed = DeTable::parse(file.text)
            .map_err(|e| file.wrong(&e.span().unwrap_or(0..0), "the file is not TOML", e.message()))?;
        Ok(Table { file, path: String::new(), span: 0..0, left: parsed.into_inner() })
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value<'a>> {
        let value = self.left.remove(key)?;
        Some(Value { file: self.file, key: format!("{}{key}", self.path), value })
    }

    pub(super) fn missing(&self, key: &str, help: &str) -> Error {
        self.file.wrong(&self.span, &format!("{}{key}", self.path), format!("missing: {help}"))
    }

    pub(super) fn finish(self, known: &str) -> Result<(), Error> {
        match self.left.into_iter().next() {
            None => Ok(()),
            Some((key, _)) => {
                let name = format!("{}{}", self.path, key.get_ref());
                Err(self.file.wrong(&key.span(), &name, format!("not a known key: known here are {known}")))
            }
        }
    }
}

/// A number in model units or a text in human units.
pub(super) enum Amount {
    Units(f64),
    Human(f64),
}

impl<'a> Value<'a> {
    pub(super) fn wrong(&self, text: impl std::fmt::Display) -> Error {
        self.file.wrong(&self.value.span(), &self.key, text)
    }

    pub(super) fn number(&self) -> Result<f64, Error> {
        let digits = match self.value.get_ref() {
            DeValue::Integer(n) => n.to_string().replace('_', ""),
            DeValue::Float(n) => n.as_str().replace('_', ""),
            other => return Err(self.wrong(format!("a number is needed, not {}", kind(other)))),
        };
        match digits.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(n),
            _ => Err(self.wrong(format!("{digits} is not a finite number"))),
        }
    }

    /// A number that is not negative.
    pub(super) fn amount(&self) -> Result<f64, Error> {
        let n = self.number()?;
        if n < 0.0 { Err(self.wrong(format!("{n} is negative"))) } else { Ok(n) }
    }

    /// A number above 0.
    pub(super) fn above_zero(&self) -> Result<f64, Error> {
        let n = self.amount()?;
        if n > 0.0 { Ok(n) } else { Err(self.wrong("0 is not the size of a unit")) }
    }

    pub(super) fn text(&self) -> Result<&str, Error> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            other => Err(self.wrong(format!("a text is needed, not {}", kind(other)))),
        }
    }

    pub(super) fn truth(&self) -> Result<bool, Error> {
        match self.value.get_ref() {
            DeValue::Boolean(b) => Ok(*b),
            other => Err(self.wrong(format!("true or false is needed, not {}", kind(other)))),
        }
    }

    pub(super) fn share(&self) -> Result<f64, Error> {
        if let DeValue::String(text) = self.value.get_ref() {
            return quantity::share(text).map_err(|e| self.wrong(e));
        }
        let n = self.number()?;
        if (0.0..=1.0).contains(&n) { Ok(n) } else { Err(self.wrong(format!("{n} is not between 0 and 1"))) }
    }

    pub(super) fn human(&self, read: fn(&str) -> Result<f64, String>) -> Result<f64, Error> {
        read(self.text()?).map_err(|e| self.wrong(e))
    }

    pub(super) fn units_or(&self, read: fn(&str) -> Result<f64, String>) -> Result<Amount, Error> {
        match self.value.get_ref() {
            DeValue::String(_) => Ok(Amount::Human(self.human(read)?)),
            _ => Ok(Amount::Units(self.amount()?)),
        }
    }

    pub(super) fn table(self, path: &str) -> Result<Table<'a>, Error> {
        let span = self.value.span();
        match self.value.into_inner() {
            DeValue::Table(left) => Ok(Table { file: self.file, path: path.to_owned(), span, left }),
            other => {
                Err(self.file.wrong(&span, &self.key, format!("a table is needed, not {}", kind(&other))))
            }
        }
    }

    pub(super) fn tables(self) -> Result<Vec<Table<'a>>, Error> {
        let (file, key, span) = (self.file, self.key, self.value.span());
        let DeValue::Array(items) = self.value.into_inner() else {
            return Err(file.wrong(&span, &key, "write each application as a table headed [[app]]"));
        };
        items
            .into_iter()
            .enumerate()
            .map(|(i, value)| {
                Value { file, key: format!("app {}", i + 1), value }.table(&format!("app {}: ", i + 1))
            })
            .collect()
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
