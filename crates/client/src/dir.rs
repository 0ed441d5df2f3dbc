//! Listing directories.

use crate::by_id::ById;
use forebay_model::{FileId, Result};
use forebay_wire::Entry;
use std::collections::VecDeque;

const PAGE: u32 = 1024;

/// What a listing contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listing {
    /// Names, ids and kinds.
    Names,
    /// Attributes too.
    Attributes,
}

/// A directory listing, fetched page by page. Entries created or removed meanwhile may be missing or present; every
/// other entry appears exactly once.
pub struct ReadDir {
    by_id: ById,
    dir: FileId,
    listing: Listing,
    label: String,
    page: VecDeque<Entry>,
    /// Cookie of the next page; `None` after the last one.
    next: Option<u64>,
}

impl ReadDir {
    pub(crate) fn new(by_id: ById, dir: FileId, listing: Listing, label: String) -> ReadDir {
        ReadDir { by_id, dir, listing, label, page: VecDeque::new(), next: Some(0) }
    }

    /// The next entry, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.page.pop_front() {
                return Ok(Some(entry));
            }
            let Some(cookie) = self.next else {
                return Ok(None);
            };
            let plus = self.listing == Listing::Attributes;
            let page = self.by_id.read_dir(self.dir, cookie, PAGE, plus).await;
            let (entries, next) =
                page.map_err(|error| error.within(format_args!("cannot list {}", self.label)))?;
            (self.page, self.next) = (entries.into(), next);
        }
    }

    /// All remaining entries.
    pub async fn all(mut self) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await? {
            all.push(entry);
        }
        Ok(all)
    }
}
