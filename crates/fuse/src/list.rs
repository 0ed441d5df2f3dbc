//! Open directories.

use forebay_client::Entry;
use forebay_client::{ById, Client, File};
use forebay_model::{FileId, FileKind, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;

const PAGE: u32 = 512;
/// Listing positions after `.` and `..`. The server's cookies are hashes, none as small as these.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;

/// An open directory and its listing position.
pub(crate) struct Listing {
    client: Client,
    dir: FileId,
    /// Open at the server, so that it stays usable when its path becomes inaccessible.
    _held: File,
    prefetched: Mutex<Prefetched>,
}

/// Entries that were fetched and not yet returned.
#[derive(Default)]
struct Prefetched {
    /// The listing position before the first of them.
    place: u64,
    entries: VecDeque<Entry>,
    /// The cookie of the next page; `None` after the last.
    next: Option<u64>,
}

/// One entry for the kernel.
pub(crate) struct Item<'a> {
    pub(crate) file: FileId,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
    /// The listing position after it.
    pub(crate) place: u64,
}

impl Listing {
    pub(crate) fn new(client: Client, dir: FileId, held: File) -> Listing {
        Listing { client, dir, _held: held, prefetched: Mutex::default() }
    }

    fn by_id(&self) -> &ById {
        self.client.by_id()
    }

    fn prefetched(&self) -> MutexGuard<'_, Prefetched> {
        self.prefetched.lock()
    }

    /// Passes the entries after `place` to `take` until there are no more or `take` returns false.
    pub(crate) fn from(
        &self,
        place: u64,
        wait: &tokio::runtime::Handle,
        mut take: impl FnMut(Item<'_>) -> bool,
    ) -> Result<()> {
        let kind = FileKind::Directory;
        if place == 0 && !take(Item { file: self.dir, kind, name: b".", place: AFTER_DOT }) {
            return Ok(());
        }
        if place <= AFTER_DOT {
            let above = wait.block_on(self.by_id().walk(self.dir, b"..", false));
            let file = match above {
                Ok(attr) => attr.id,
                // If the server does not answer this request, it will not answer the rest either.
                Err(error) if error.kind().is_no_answer() => return Err(error),
                Err(_) => self.dir,
            };
            if !take(Item { file, kind, name: b"..", place: AFTER_DOTS }) {
                return Ok(());
            }
        }
        let mut prefetched = self.prefetched();
        if place <= AFTER_DOTS || prefetched.place != place {
            let cookie = if place <= AFTER_DOTS { 0 } else { place };
            *prefetched = Prefetched { place, entries: VecDeque::new(), next: Some(cookie) };
        }
        loop {
            while let Some(entry) = prefetched.entries.front() {
                let (file, kind, name) = (entry.file, entry.kind, entry.name.as_bytes());
                let after = place_after(entry.cookie, prefetched.entries.get(1).map(|next| next.cookie));
                if !take(Item { file, kind, name, place: after }) {
                    return Ok(());
                }
                prefetched.entries.pop_front();
                prefetched.place = after;
            }
            let Some(cookie) = prefetched.next else { return Ok(()) };
            let (entries, next) = wait.block_on(self.by_id().read_dir(self.dir, cookie, PAGE, false))?;
            (prefetched.entries, prefetched.next) = (entries.into(), next);
        }
    }
}

/// The listing position after an entry. Names with the same hash share a cookie: listing can resume only after
/// the last of them.
fn place_after(cookie: u64, next: Option<u64>) -> u64 {
    // A correct server has no cookie 0.
    if next == Some(cookie) { cookie.saturating_sub(1) } else { cookie }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_resumes_after_the_last_entry_of_a_cookie() {
        for (cookie, next, after) in [
            (9, None, 9),
            (9, Some(10), 9),
            (9, Some(9), 8),
            (0, Some(0), 0),
            (u64::MAX, Some(u64::MAX), u64::MAX - 1),
        ] {
            assert_eq!(place_after(cookie, next), after, "{cookie} {next:?}");
        }
    }
}
