//! Appends to striped files.
//!
//! The authority receives all bytes first. Then, while no other client appends to or truncates the file, it writes them
//! at its end piece by piece, in order. A crash in between leaves a prefix of the appended bytes or nothing, as on a
//! local file system, and never a hole.

use super::{Peers, StripedFiles, Undone};
use crate::backing::BackingLayer;
use crate::connection_epoch::ConnectionEpoch;
use crate::drain::BufferSpace;
use crate::file_homes::FileHomes;
use forebay_model::{Error, ErrorKind, FileId, JobId, Layout, Result, ServerId, Span, Uid};
use forebay_store::{Data, Filled, MAX_FILE, Place, Store};
use forebay_wire::{MAX_PUT, PeerRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An append that has waited this long is told to retry; and the pause between two attempts on a full server.
const LONGEST: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// The file, user and job of a write.
pub(crate) struct Writer {
    pub(crate) file: FileId,
    pub(crate) uid: Uid,
    pub(crate) job: JobId,
}

/// Why an append stops.
enum Halt {
    Undone(Undone),
    /// This server's buffer is full.
    Full(ServerId, Error),
}

/// The offset of an append, and how many of its bytes are written.
struct Progress {
    offset: u64,
    done: u64,
}

impl<T: Into<Undone>> From<T> for Halt {
    fn from(undone: T) -> Halt {
        Halt::Undone(undone.into())
    }
}

impl Writer {
    /// Writes into the store of this server.
    pub(super) fn put(&self, data: &Data, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut parts, mut left) = (Vec::new(), bytes);
        while !left.is_empty() {
            let len = u32::try_from(left.len()).map_err(|_| Error::from(ErrorKind::TooLarge))?;
            let mut grant = data.reserve(self.uid, self.file, len)?;
            let (now, later) = left.split_at(left.len().min(grant.len() as usize));
            grant.as_mut_slice()[..now.len()].copy_from_slice(now);
            parts.push(Filled { grant, len: now.len() as u32, crc: crc32c::crc32c(now) });
            left = later;
        }
        if parts.is_empty() {
            return Ok(());
        }
        data.commit(self.file, Place::At(offset), parts, self.job).map(drop)
    }
}

/// Appends to files of this authority that lie on several servers.
pub(crate) struct Appends {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) striped: Arc<StripedFiles>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) space: Arc<BufferSpace>,
}

impl Appends {
    /// Appends to a file of this authority, and returns the offset. Waits while a buffer is full; meanwhile no other
    /// client appends or truncates, and the drain continues.
    pub(crate) async fn append(
        &self,
        connection_epoch: &Arc<ConnectionEpoch>,
        writer: &Writer,
        layout: &Layout,
        bytes: &[u8],
    ) -> Result<u64, Undone> {
        let file = writer.file;
        let _end = self.striped.end(file).lock().await;
        let until = Instant::now() + LONGEST;
        let mut progress = Progress { offset: 0, done: 0 };
        loop {
            let halt = {
                let _order = self.striped.order(file).lock().await;
                let _pass = connection_epoch.pass()?;
                if progress.done == 0 {
                    // Otherwise a truncation that a holder has not applied yet would cut off the appended bytes.
                    self.striped.notify_reshaped(file).await?;
                    self.layer.recover_from_backing(file).await?;
                    progress.offset = self.striped.length(file).await?;
                }
                match self.append_missing(writer, layout, bytes, &mut progress).await {
                    Ok(()) => return Ok(progress.offset),
                    Err(halt) => halt,
                }
            };
            let (server, full) = match halt {
                Halt::Undone(undone) => return Err(undone),
                Halt::Full(server, error) => (server, error),
            };
            match self.wait_for_space_at(server, writer, bytes.len(), until).await {
                Ok(()) => {}
                // A part is written: the append must not be retried.
                Err(_) if progress.done > 0 => return Err(full.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes the missing pieces. The caller holds the file's end and order locks.
    async fn append_missing(
        &self,
        writer: &Writer,
        layout: &Layout,
        bytes: &[u8],
        progress: &mut Progress,
    ) -> Result<(), Halt> {
        let offset = progress.offset;
        let whole = Span::at(offset, bytes.len() as u64).filter(|span| span.end <= MAX_FILE);
        let whole = whole.ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
        let missing = Span::new(offset + progress.done, whole.end);
        for (server, span) in layout.pieces(missing).flat_map(|(server, span)| split(server, span)) {
            let piece = &bytes[(span.start - offset) as usize..(span.end - offset) as usize];
            match self.put_at(server, writer, span.start, piece).await {
                Ok(()) => progress.done += span.len(),
                // The append must not be retried: a part is written, or may be.
                Err(error) if is_unsure(&error) && (progress.done > 0 || server != self.own) => {
                    return Err(Halt::Undone(Undone::Unknown));
                }
                Err(error) if error.kind() == ErrorKind::NoSpace && self.space.is_drained() => {
                    return Err(Halt::Full(server, error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until a server may have space.
    async fn wait_for_space_at(
        &self,
        server: ServerId,
        writer: &Writer,
        len: usize,
        until: Instant,
    ) -> Result<()> {
        if Instant::now() > until {
            let text = format!("the buffer of server {server} is full: retry");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        if server != self.own {
            tokio::time::sleep(POLL).await;
            return Ok(());
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let look = || self.store.data().reserve(writer.uid, writer.file, len).map(|grant| ((), grant.len()));
        self.space.wait_for_space(writer.job, || {}, look).await
    }

    async fn put_at(&self, server: ServerId, writer: &Writer, offset: u64, bytes: &[u8]) -> Result<()> {
        match server == self.own {
            true => tokio::task::block_in_place(|| writer.put(self.store.data(), offset, bytes)),
            false => self.put_remote(server, writer, offset, bytes).await,
        }
    }

    async fn put_remote(&self, server: ServerId, writer: &Writer, offset: u64, bytes: &[u8]) -> Result<()> {
        let &Writer { file, uid, job } = writer;
        let lost_below = self.homes.lost_below(file, server)?;
        self.homes.note_extent(file, |extent| extent.size_pending = true)?;
        let put = PeerRequest::Put { file, uid, job, offset, lost_below, bytes: bytes.to_vec() };
        self.peers.ask(server, put).await.map(drop)
    }
}

fn is_unsure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unreachable)
}

/// Splits a range into pieces that fit in one request.
fn split(server: ServerId, span: Span) -> impl Iterator<Item = (ServerId, Span)> {
    (span.start..span.end)
        .step_by(MAX_PUT)
        .map(move |start| (server, Span::new(start, span.end.min(start + MAX_PUT as u64))))
}
