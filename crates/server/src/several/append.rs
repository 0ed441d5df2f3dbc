//! Appends to files whose bytes several servers hold.
//!
//! The authority takes all bytes first. Then, while nobody else appends or cuts, it puts them behind the end piece by
//! piece, the first one first. Whoever dies over that leaves the beginning of what was appended or nothing of it, as a
//! file system of one machine does, and never a hole.

use super::Undone;
use crate::fence::Fence;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, FileId, JobId, Layout, Result, ServerId, Span, Uid};
use forebay_store::{Body, Filled, MAX_FILE, Place};
use forebay_wire::{MAX_PUT, PeerRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After so long whoever appends is told to come again; and between two looks whether another server has room.
const LONGEST: Duration = Duration::from_secs(20);
const GLANCE: Duration = Duration::from_millis(50);

/// Who writes to what.
pub(crate) struct Writer {
    pub(crate) file: FileId,
    pub(crate) uid: Uid,
    pub(crate) job: JobId,
}

/// Why an append does not go on.
enum Halt {
    Undone(Undone),
    /// This server has no room.
    Full(ServerId, Error),
}

/// Where something is appended, and how much of it is there.
struct Rest {
    offset: u64,
    done: u64,
}

impl<T: Into<Undone>> From<T> for Halt {
    fn from(undone: T) -> Halt {
        Halt::Undone(undone.into())
    }
}

impl Service {
    /// The layout of a file of ours, if others hold its bytes.
    pub(crate) fn shared_layout(&self, file: FileId) -> Result<Option<Layout>> {
        if self.is_alone() || self.members.members().authority(file) != self.config.server {
            return Ok(None);
        }
        match self.store.names().inode(file)?.body {
            Body::File { layout, .. } if layout.only() != Some(self.config.server) => Ok(Some(layout)),
            _ => Ok(None),
        }
    }

    /// Writes behind the end of a file of ours, and says where that was. A full buffer is waited for; meanwhile nobody else
    /// appends or cuts, and whoever drains goes on.
    pub(crate) async fn append_shared(
        self: &Arc<Service>,
        fence: &Arc<Fence>,
        writer: &Writer,
        layout: &Layout,
        bytes: &[u8],
    ) -> Result<u64, Undone> {
        let file = writer.file;
        let _end = self.afar.end(file).lock().await;
        let until = Instant::now() + LONGEST;
        let mut rest = Rest { offset: 0, done: 0 };
        loop {
            let halt = {
                let _order = self.afar.order(file).lock().await;
                let _pass = fence.pass()?;
                if rest.done == 0 {
                    // Otherwise a cut that somebody has not heard of would come over what is appended now.
                    self.tell_reshaped(file).await?;
                    self.recover_from_behind(file).await?;
                    rest.offset = self.length(file).await?;
                }
                match self.append_rest(writer, layout, bytes, &mut rest).await {
                    Ok(()) => return Ok(rest.offset),
                    Err(halt) => halt,
                }
            };
            let (server, full) = match halt {
                Halt::Undone(undone) => return Err(undone),
                Halt::Full(server, error) => (server, error),
            };
            match self.wait_for_room_at(server, writer, bytes.len(), until).await {
                Ok(()) => {}
                // Something of it is there: nobody must try it again.
                Err(_) if rest.done > 0 => return Err(full.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Puts what is missing behind what is there. The caller keeps the file's end and order.
    async fn append_rest(
        self: &Arc<Service>,
        writer: &Writer,
        layout: &Layout,
        bytes: &[u8],
        rest: &mut Rest,
    ) -> Result<(), Halt> {
        let offset = rest.offset;
        let whole = Span::at(offset, bytes.len() as u64).filter(|span| span.end <= MAX_FILE);
        let whole = whole.ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
        let missing = Span::new(offset + rest.done, whole.end);
        for (server, span) in layout.pieces(missing).flat_map(|(server, span)| small(server, span)) {
            let piece = &bytes[(span.start - offset) as usize..(span.end - offset) as usize];
            match self.put_at(server, writer, span.start, piece).await {
                Ok(()) => rest.done += span.len(),
                // Nobody must try that again: something of it is there, or may be.
                Err(error) if is_unsure(&error) && (rest.done > 0 || server != self.config.server) => {
                    return Err(Halt::Undone(Undone::Unknown));
                }
                Err(error) if error.kind() == ErrorKind::NoSpace && self.drain.is_some() => {
                    return Err(Halt::Full(server, error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for a moment in which a server may have room.
    async fn wait_for_room_at(
        &self,
        server: ServerId,
        writer: &Writer,
        len: usize,
        until: Instant,
    ) -> Result<()> {
        if Instant::now() > until {
            let text = format!("the buffer of server {server} is full: come again");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        if server != self.config.server {
            tokio::time::sleep(GLANCE).await;
            return Ok(());
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let look = || self.store.data().reserve(writer.uid, writer.file, len).map(|grant| ((), grant.len()));
        self.find_room(writer.job, || {}, look).await
    }

    async fn put_at(
        self: &Arc<Service>,
        server: ServerId,
        writer: &Writer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        match server == self.config.server {
            true => tokio::task::block_in_place(|| self.put_here(writer, offset, bytes)),
            false => self.put_there(server, writer, offset, bytes).await,
        }
    }

    async fn put_there(&self, server: ServerId, writer: &Writer, offset: u64, bytes: &[u8]) -> Result<()> {
        let &Writer { file, uid, job } = writer;
        let lost_below = self.lost_below(file, server)?;
        self.note_extent(file, |extent| extent.unsettled = true)?;
        let put = PeerRequest::Put { file, uid, job, offset, lost_below, bytes: bytes.to_vec() };
        self.ask(server, put).await.map(drop)
    }

    /// Writes into the store of this server.
    pub(super) fn put_here(&self, writer: &Writer, offset: u64, bytes: &[u8]) -> Result<()> {
        let (data, mut parts, mut left) = (self.store.data(), Vec::new(), bytes);
        while !left.is_empty() {
            let len = u32::try_from(left.len()).map_err(|_| Error::from(ErrorKind::TooLarge))?;
            let mut grant = data.reserve(writer.uid, writer.file, len)?;
            let (now, later) = left.split_at(left.len().min(grant.len() as usize));
            grant.as_mut_slice()[..now.len()].copy_from_slice(now);
            parts.push(Filled { grant, len: now.len() as u32, crc: crc32c::crc32c(now) });
            left = later;
        }
        if parts.is_empty() {
            return Ok(());
        }
        data.commit(writer.file, Place::At(offset), parts, writer.job).map(drop)
    }
}

fn is_unsure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unreachable)
}

/// Pieces of a range that fit what one server tells another.
fn small(server: ServerId, span: Span) -> impl Iterator<Item = (ServerId, Span)> {
    (span.start..span.end)
        .step_by(MAX_PUT)
        .map(move |start| (server, Span::new(start, span.end.min(start + MAX_PUT as u64))))
}
