//! Open directories.

use forebay_client::Entry;
use forebay_client::{ById, Client, File};
use forebay_model::{FileId, FileKind, Result};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: u32 = 512;
/// Where listing goes on behind `.` and `..`. The server's cookies are hashes: none is as small as this.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOTS: u64 = 2;

/// An open directory, and how far it was listed.
pub(crate) struct Listing {
    client: Client,
    dir: FileId,
    /// Open at the server, so that it can be used after the way to it is barred.
    _held: File,
    ahead: Mutex<Ahead>,
}

/// Entries that were fetched and not yet wanted.
#[derive(Default)]
struct Ahead {
    /// The place behind which they are.
    place: u64,
    entries: VecDeque<Entry>,
    /// Where the next page begins; `None` behind the last.
    next: Option<u64>,
}

/// One entry as the kernel wants it.
pub(crate) struct Item<'a> {
    pub(crate) file: FileId,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
    /// Where listing goes on behind it.
    pub(crate) place: u64,
}

impl Listing {
    pub(crate) fn new(client: Client, dir: FileId, held: File) -> Listing {
        Listing { client, dir, _held: held, ahead: Mutex::default() }
    }

    fn by_id(&self) -> &ById {
        self.client.by_id()
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over entries behind a place until there are no more or `take` wants no more.
    pub(crate) fn from(
        &self,
        place: u64,
        wait: &tokio::runtime::Handle,
        mut take: impl FnMut(Item<'_>) -> bool,
    ) -> Result<()> {
        let kind = FileKind::Directory;
        if place == 0 && !take(Item { file: self.dir, kind, name: b".", place: BEHIND_DOT }) {
            return Ok(());
        }
        if place <= BEHIND_DOT {
            let above = wait.block_on(self.by_id().walk(self.dir, b"..", false));
            let file = above.map_or(self.dir, |attr| attr.id);
            if !take(Item { file, kind, name: b"..", place: BEHIND_DOTS }) {
                return Ok(());
            }
        }
        let mut ahead = self.ahead();
        if place <= BEHIND_DOTS || ahead.place != place {
            let cookie = if place <= BEHIND_DOTS { 0 } else { place };
            *ahead = Ahead { place, entries: VecDeque::new(), next: Some(cookie) };
        }
        loop {
            while let Some(entry) = ahead.entries.front() {
                let (file, kind, name) = (entry.file, entry.kind, entry.name.as_bytes());
                // Names with one hash share a cookie: the way on is behind the last of them only.
                let twin = ahead.entries.get(1).is_some_and(|next| next.cookie == entry.cookie);
                let behind = if twin { entry.cookie - 1 } else { entry.cookie };
                if !take(Item { file, kind, name, place: behind }) {
                    return Ok(());
                }
                ahead.entries.pop_front();
                ahead.place = behind;
            }
            let Some(cookie) = ahead.next else { return Ok(()) };
            let (entries, next) = wait.block_on(self.by_id().read_dir(self.dir, cookie, PAGE, false))?;
            (ahead.entries, ahead.next) = (entries.into(), next);
        }
    }
}
