//! Allocation of ids that are never reused, even across crashes.

use super::{damaged, key};
use crate::meta::{Batch, Kv};
use forebay_model::{Error, ErrorKind, FileId, Result, ServerId};
use parking_lot::Mutex;

const VERSION: u8 = 3;
/// Number of ids reserved in the store at a time; a restart skips the unused ones.
const CHUNK: u64 = 1 << 16;
/// Upper bound of the ids of a server.
const END: u64 = 1 << 48;
/// The first id after the root directory's.
const FIRST: u64 = 2;

/// The high-water mark of ids: no id from `next` on was allocated.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pub(super) server: ServerId,
    pub(super) next: u64,
}

impl Mark {
    pub(super) fn first(server: ServerId) -> Mark {
        Mark { server, next: FIRST }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut value = vec![VERSION];
        value.extend(self.server.0.to_be_bytes());
        value.extend(self.next.to_be_bytes());
        value
    }

    pub(super) fn load(kv: &dyn Kv) -> Result<Mark> {
        let none = "the store contains no namespace: create one with \"forebay up\" in an empty directory";
        let value = kv.get(&key::ids())?.ok_or_else(|| Error::new(ErrorKind::BadStore, none))?;
        if let Some(&version) = value.first()
            && version < VERSION
        {
            let text = format!(
                "the namespace has format {version}, and this program knows format {VERSION}: copy the files out with \
                 the program that made the store, then make a new one"
            );
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        let parts = match value.as_slice() {
            [VERSION, high, low, next @ ..] => next.try_into().ok().map(|next| (*high, *low, next)),
            _ => None,
        };
        let (high, low, next) = parts.ok_or_else(|| damaged("the high-water mark of ids cannot be read"))?;
        let mark = Mark { server: ServerId(u16::from_be_bytes([high, low])), next: u64::from_be_bytes(next) };
        if (FIRST..=END).contains(&mark.next) {
            Ok(mark)
        } else {
            Err(damaged("the high-water mark of ids is out of range"))
        }
    }
}

/// Allocates ids.
pub(super) struct Ids {
    server: ServerId,
    first: u64,
    free: Mutex<Free>,
}

struct Free {
    next: u64,
    end: u64,
}

impl Ids {
    pub(super) fn open(kv: &dyn Kv, server: ServerId) -> Result<Ids> {
        let mark = Mark::load(kv)?;
        if mark.server != server {
            let text = format!("the store belongs to server {}, not to server {server}", mark.server);
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        Ok(Ids { server, first: mark.next, free: Mutex::new(Free { next: mark.next, end: mark.next }) })
    }

    pub(super) fn server(&self) -> ServerId {
        self.server
    }

    /// The first id that this process can allocate.
    pub(super) fn first(&self) -> FileId {
        FileId::made_by(self.server, self.first.min(END - 1))
    }

    /// The first unallocated id.
    pub(super) fn peek(&self) -> FileId {
        let free = self.free.lock();
        FileId::made_by(self.server, free.next.min(END - 1))
    }

    /// Never allocates below `count` again.
    pub(super) fn skip(&self, kv: &dyn Kv, count: u64) -> Result<()> {
        let mut free = self.free.lock();
        if count <= free.next {
            return Ok(());
        }
        let end = count.min(END).max(free.end);
        self.mark(kv, end)?;
        *free = Free { next: count.min(END), end };
        Ok(())
    }

    fn mark(&self, kv: &dyn Kv, end: u64) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(key::ids(), Mark { server: self.server, next: end }.encode());
        kv.commit(batch)?;
        // Bytes in regions carry ids too, and could survive a crash that loses this mark unless it is durable first. An
        // id allocated twice would then expose them in another file.
        kv.sync()
    }

    pub(super) fn next(&self, kv: &dyn Kv) -> Result<FileId> {
        let mut free = self.free.lock();
        if free.next == free.end {
            let end = (free.end + CHUNK).min(END);
            if free.next == end {
                return Err(Error::new(
                    ErrorKind::NoSpace,
                    format!("server {} has allocated all its ids", self.server),
                ));
            }
            self.mark(kv, end)?;
            free.end = end;
        }
        free.next += 1;
        Ok(FileId::made_by(self.server, free.next - 1))
    }
}
