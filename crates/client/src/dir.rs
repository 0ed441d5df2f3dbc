//! Listing directories.

use crate::by_id::ById;
use forebay_model::{FileId, Result};
use forebay_wire::Entry;
use std::collections::VecDeque;

const PAGE: u32 = 1024;

/// What a listing holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listing {
    /// Names, ids and kinds.
    Names,
    /// Attributes too.
    Attributes,
}

/// A directory being listed, a page at a time. Entries that come or go meanwhile may or may not be seen; all
/// others are seen once.
pub struct ReadDir {
    by_id: ById,
    dir: FileId,
    listing: Listing,
    label: String,
    page: VecDeque<Entry>,
    /// Where the next page begins; `None` behind the last.
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

    /// All entries that are left.
    pub async fn all(mut self) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await? {
            all.push(entry);
        }
        Ok(all)
    }
}
